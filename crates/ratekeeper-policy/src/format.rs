//! The format of policy files: every section and field, with the description shown by editors.

use crate::schema::{Field, Schema, Section};

pub(crate) const fn field(name: &'static str, schema: Schema, doc: &'static str) -> Field {
    Field { name, is_required: false, may_be_empty: false, schema, doc }
}

/// An optional field that may be empty.
pub(crate) const fn part(name: &'static str, schema: Schema, doc: &'static str) -> Field {
    Field { name, is_required: false, may_be_empty: true, schema, doc }
}

pub(crate) const fn required(name: &'static str, schema: Schema, doc: &'static str) -> Field {
    Field { name, is_required: true, may_be_empty: false, schema, doc }
}

pub(crate) const RATE: Schema = Schema::Form {
    what: "a rate such as 100/minute or 5/s burst 10",
    pattern: r"^\s*[0-9].*(/|[pP][eE][rR]).*$|^unlimited$",
};
pub(crate) const DURATION: Schema =
    Schema::Form { what: "a duration such as 500ms or 10s", pattern: r"^[0-9]+\s*[a-zA-Zµ]+$" };
const PERCENT: Schema =
    Schema::Form { what: "a percentage such as 25%", pattern: r"^[0-9]+(\.[0-9]{1,2})?%$" };
const PATH: Schema =
    Schema::Form { what: "a path such as /checkout, /users/{id} or /static/**", pattern: "^/" };
pub(crate) const OVERDRAFT: Schema =
    Schema::Either(&[Schema::Boolean, Schema::Section(&OVERDRAFT_SECTION)]);
const NETWORK: Schema = Schema::Text("an address or network such as 10.0.0.0/8");
const NAME: Schema = Schema::Text("a name");
const HEADER: Schema = Schema::Text("the name of a header");
const JSON_FIELD: Schema = Schema::Text("a field such as model, or usage.total_tokens");
const WEIGHT: Schema =
    Schema::Form { what: "a number such as 4 or 0.1", pattern: r"^[0-9]+(\.[0-9]{1,6})?$" };
const STATUS: Schema =
    Schema::Form { what: "a status such as 304, or 5xx", pattern: "^[1-5]([0-9][0-9]|xx)$" };

pub(crate) static POLICY: Section = Section {
    what: "a policy",
    one_of: &[],
    fields: &[
        required("version", Schema::Integer(1, 1), "The version of this format: 1."),
        part("store", Schema::Section(&STORE), "Where counts are stored. In memory if absent."),
        part("jwt", Schema::Section(&JWT), "How tokens are verified, for identities of jwt_claim."),
        part(
            "identify",
            Schema::Map(&Schema::Section(&IDENTITY)),
            "Identities to count by: a name, and where the value is found. `ip` is built in.",
        ),
        part("tiers", Schema::Section(&TIERS), "Tiers of clients, with different rates."),
        part(
            "priorities",
            Schema::List(&Schema::Section(&PRIORITY)),
            "Priority classes of requests; the first that matches. Limits give them shares.",
        ),
        part(
            "exempt",
            Schema::List(&Schema::Section(&MATCH)),
            "Requests that no limit applies to, such as health checks.",
        ),
        Field {
            may_be_empty: true,
            ..required(
                "limits",
                Schema::List(&Schema::Tagged {
                    by: &["first", "all"],
                    tagged: &GROUP,
                    plain: &LIMIT,
                }),
                "The limits. A request is charged to all that match, or to none.",
            )
        },
        part(
            "responses",
            Schema::Section(&RESPONSES),
            "Headers of responses, and the body and status of denials.",
        ),
    ],
};

static STORE: Section = Section {
    what: "a store",
    one_of: &[],
    fields: &[
        required(
            "url",
            Schema::Text("memory, or the address of a Redis or Valkey"),
            "memory, redis://…, rediss://…, redis+sentinel://…, redis+cluster://…; ${NAME} stands for an environment variable.",
        ),
        field("prefix", Schema::Text("a prefix"), "Prefix of keys in Redis."),
        field(
            "deadline",
            DURATION,
            "Maximum time for one decision, after which the call has failed. 5ms if absent.",
        ),
        field(
            "on_failure",
            FAILURE_MODE,
            "What limits do while the store is unavailable, unless a limit sets on_store_failure.",
        ),
        field(
            "leased",
            Schema::Boolean,
            "Serve hot keys from memory, with units leased from the store.",
        ),
        field(
            "keys_max",
            Schema::Integer(1, 1 << 32),
            "Maximum number of keys in memory. A million if absent.",
        ),
    ],
};

const FAILURE_MODE: Schema = Schema::Choice(&[
    ("local", "Limit locally, to this node's share of the limit."),
    ("open", "Fail open: allow requests."),
    ("closed", "Fail closed: deny requests."),
]);

static JWT: Section = Section {
    what: "a jwt section",
    one_of: &["secret", "secret_env", "secret_file", "public_key_file", "jwks_file"],
    fields: &[
        field(
            "secret",
            Schema::Text("a secret"),
            "The shared secret (HS256, HS384, HS512) itself.",
        ),
        field("secret_env", NAME, "The environment variable that holds the shared secret."),
        field("secret_file", Schema::Text("a file"), "The file that holds the shared secret."),
        field(
            "public_key_file",
            Schema::Text("a file"),
            "A public key in PEM (RSA, EC or Ed25519).",
        ),
        field("jwks_file", Schema::Text("a file"), "A JSON Web Key Set (JWKS)."),
        field(
            "algorithms",
            Schema::OneOrMany(&Schema::Choice(&[
                ("HS256", ""),
                ("HS384", ""),
                ("HS512", ""),
                ("RS256", ""),
                ("RS384", ""),
                ("RS512", ""),
                ("PS256", ""),
                ("PS384", ""),
                ("PS512", ""),
                ("ES256", ""),
                ("ES384", ""),
                ("EdDSA", ""),
            ])),
            "Accept only these of the key's algorithms.",
        ),
        field("issuer", NAME, "Required issuer (`iss`)."),
        field("audience", NAME, "Required audience (`aud`)."),
        field("leeway", DURATION, "Tolerated clock skew. 30s if absent."),
        field(
            "header",
            HEADER,
            "The header that holds the token. `authorization` if absent, which requires `Bearer`.",
        ),
        field("cookie", NAME, "The cookie that holds the token, instead of a header."),
    ],
};

static IDENTITY: Section = Section {
    what: "an identity",
    one_of: &[
        "header",
        "cookie",
        "query",
        "path_segment",
        "jwt_claim",
        "request_json",
        "client_ip",
        "constant",
        "custom",
        "first_of",
        "all_of",
    ],
    fields: &[
        field("header", HEADER, "The value of this header."),
        field("cookie", NAME, "The value of this cookie."),
        field("query", NAME, "The value of this query parameter."),
        field("path_segment", Schema::Integer(1, 64), "This segment of the path, counted from 1."),
        field(
            "jwt_claim",
            NAME,
            "This claim of the verified token; dots select members of objects.",
        ),
        field(
            "request_json",
            JSON_FIELD,
            "This field of the request's JSON body (gateway and tower layer).",
        ),
        field(
            "client_ip",
            Schema::Either(&[Schema::Section(&CLIENT_IP), Schema::Boolean]),
            "The client's address; for IPv6, its /64 network.",
        ),
        field("constant", NAME, "Always this value."),
        field("custom", Schema::Boolean, "Supplied by the application."),
        field("first_of", Schema::List(&NAME), "The first of these identities that is present."),
        field("all_of", Schema::List(&NAME), "All of these identities together."),
        field(
            "missing",
            Schema::Choice(&[
                ("ip", "Count by the client's address instead. The default."),
                ("anonymous", "Count all requests without it together."),
                ("deny", "Reject requests without it with 401."),
            ]),
            "What limits per this identity do with a request without it.",
        ),
    ],
};

static CLIENT_IP: Section = Section {
    what: "a client_ip",
    one_of: &[],
    fields: &[
        field(
            "trusted_proxies",
            Schema::OneOrMany(&NETWORK),
            "Proxies whose forwarding header is trusted.",
        ),
        field(
            "forwarded_by",
            Schema::Choice(&[
                ("x-forwarded-for", "X-Forwarded-For, the default."),
                ("forwarded", "Forwarded (RFC 7239)."),
                ("x-real-ip", "X-Real-IP."),
            ]),
            "The header in which trusted proxies send the client's address.",
        ),
        field(
            "ipv4_prefix",
            Schema::Integer(8, 32),
            "Prefix length by which IPv4 addresses are grouped. 32 if absent.",
        ),
        field(
            "ipv6_prefix",
            Schema::Integer(16, 128),
            "Prefix length by which IPv6 addresses are grouped. 64 if absent.",
        ),
    ],
};

static TIERS: Section = Section {
    what: "a tiers section",
    one_of: &["members", "names"],
    fields: &[
        required("of", NAME, "The identity that determines the tier."),
        field("members", Schema::Map(&NAME), "The tier of each value of that identity."),
        field(
            "names",
            Schema::List(&NAME),
            "The value is the name of a tier: one of these. For a claim or a trusted header.",
        ),
        required("default", NAME, "The tier of all other clients."),
    ],
};

static PRIORITY: Section = Section {
    what: "a priority",
    one_of: &[],
    fields: &[
        required("class", NAME, "The class of these requests."),
        required("match", Schema::Section(&MATCH), "Which requests."),
    ],
};

pub(crate) static MATCH: Section = Section {
    what: "a match",
    one_of: &[],
    fields: &[
        field(
            "method",
            Schema::OneOrMany(&Schema::Text("a method such as POST")),
            "Any of these methods.",
        ),
        field(
            "path",
            Schema::OneOrMany(&PATH),
            "Any of these paths: * or {name} is one segment, ** the rest.",
        ),
        field(
            "host",
            Schema::OneOrMany(&Schema::Text("a host such as *.example.com")),
            "Any of these hosts.",
        ),
        field(
            "header",
            Schema::Map(&Schema::Either(&[
                Schema::Boolean,
                Schema::OneOrMany(&Schema::Text("a value, with * for any run of characters")),
            ])),
            "All of these headers: a value, true for present, false for absent.",
        ),
        field(
            "query",
            Schema::Map(&Schema::Either(&[
                Schema::Boolean,
                Schema::OneOrMany(&Schema::Text("a value, with * for any run of characters")),
            ])),
            "All of these parameters, as for headers.",
        ),
        field(
            "request_json",
            Schema::Map(&Schema::Either(&[
                Schema::Boolean,
                Schema::OneOrMany(&Schema::Text("a value, with * for any run of characters")),
            ])),
            "All of these fields of the request's JSON body, as for headers (gateway and tower layer).",
        ),
        field("ip", Schema::OneOrMany(&NETWORK), "Clients in any of these networks."),
        field("tier", Schema::OneOrMany(&NAME), "Clients of any of these tiers."),
        field("not", Schema::OneOrMany(&Schema::Section(&MATCH)), "None of these."),
    ],
};

static GROUP: Section = Section {
    what: "a group",
    one_of: &["first", "all"],
    fields: &[
        field("match", Schema::Section(&MATCH), "Which requests the group applies to."),
        field(
            "first",
            Schema::List(&Schema::Section(&LIMIT)),
            "Only the first of these that matches applies.",
        ),
        field("all", Schema::List(&Schema::Section(&LIMIT)), "All of these that match apply."),
    ],
};

static LIMIT: Section = Section {
    what: "a limit",
    one_of: &["rate", "concurrency"],
    fields: &[
        required("name", NAME, "Its name in responses and metrics. Counts are stored under it."),
        field("match", Schema::Section(&MATCH), "Which requests. All if absent."),
        field(
            "per",
            Schema::OneOrMany(&NAME),
            "Count by this identity, or by a combination of several. One count for all if absent.",
        ),
        field(
            "rate",
            Schema::Either(&[RATE, Schema::Map(&RATE)]),
            "The rate, such as 100/minute, 5/s burst 10 or 1000/calendar day in Europe/Berlin; or one for each tier, `unlimited` for a tier without a limit.",
        ),
        field(
            "concurrency",
            Schema::Either(&[
                Schema::Integer(1, 1 << 32),
                Schema::Map(&Schema::Either(&[
                    Schema::Integer(1, 1 << 32),
                    Schema::Choice(&[("unlimited", "")]),
                ])),
            ]),
            "Maximum number of requests in flight, or one for each tier.",
        ),
        field(
            "algorithm",
            Schema::Choice(&[
                (
                    "fixed_window",
                    "A counter for each window; up to twice the limit around a boundary.",
                ),
                (
                    "sliding_log",
                    "A timestamp for each request; never more than the limit in any period.",
                ),
                ("sliding_counter", "Two counters for each key; the window slides."),
                ("token_bucket", "A burst, then a steady rate. The default."),
                ("leaky_bucket", "A queue that admits requests evenly spaced."),
                ("gcra", "Another name of token_bucket."),
            ]),
            "The algorithm that counts.",
        ),
        field("count_rejected", Schema::Boolean, "Count denied requests too (sliding_log)."),
        field(
            "overdraft",
            OVERDRAFT,
            "Allow a request if anything is left, and charge its cost in full, into debt if need be.",
        ),
        field(
            "cost",
            Schema::Either(&[Schema::Integer(1, u32::MAX as u64), Schema::Section(&COST)]),
            "The cost of a request. 1 if absent.",
        ),
        field(
            "mode",
            Schema::Either(&[
                Schema::Choice(&[
                    ("enforce", "Requests above the limit are denied. The default."),
                    ("shadow", "Counted and reported, never denied."),
                    ("off", "Not counted."),
                ]),
                Schema::Section(&RAMP),
            ]),
            "Whether it is enforced.",
        ),
        field("on_store_failure", FAILURE_MODE, "What to do while the store is unavailable."),
        field(
            "when_limited",
            Schema::Either(&[
                Schema::Choice(&[("reject", "Deny with 429. The default.")]),
                Schema::Section(&WHEN_LIMITED),
            ]),
            "What happens to a request above the limit.",
        ),
        field(
            "refund",
            Schema::OneOrMany(&STATUS),
            "Statuses of responses whose charge is refunded.",
        ),
        field(
            "shares",
            Schema::Map(&PERCENT),
            "Maximum part of the limit for each priority class.",
        ),
        field(
            "message",
            Schema::Text("a message"),
            "Message of denials, instead of the message in `responses`.",
        ),
    ],
};

static COST: Section = Section {
    what: "a cost",
    one_of: &["request_header", "response_header", "routes", "usage"],
    fields: &[
        field("request_header", HEADER, "The number in this header of the request."),
        field(
            "response_header",
            HEADER,
            "The number in this header of the response; until then, `default`.",
        ),
        field(
            "routes",
            Schema::List(&Schema::Section(&ROUTE_COST)),
            "The cost of the first of these that matches.",
        ),
        field("default", Schema::Integer(1, u32::MAX as u64), "The cost otherwise. 1 if absent."),
        field("max", Schema::Integer(1, u32::MAX as u64), "Maximum cost that a header can set."),
        field(
            "usage",
            Schema::Either(&[
                Schema::Choice(&[
                    ("openai", "The tokens that a response of OpenAI's API states."),
                    ("anthropic", "The tokens that a response of Anthropic's API states."),
                ]),
                Schema::Section(&USAGE),
            ]),
            "The usage that the body of the response states; until then, the estimate.",
        ),
        field(
            "estimate",
            Schema::Section(&ESTIMATE),
            "What a request is charged until its usage is known. 1 if absent.",
        ),
        field(
            "weights",
            Schema::Section(&WEIGHTS),
            "What a token of each kind costs. 1 if absent.",
        ),
    ],
};

static USAGE: Section = Section {
    what: "a usage",
    one_of: &[],
    fields: &[required(
        "json",
        JSON_FIELD,
        "The number in this field of the response, or of the last event that has it.",
    )],
};

static ESTIMATE: Section = Section {
    what: "an estimate",
    one_of: &[],
    fields: &[
        field(
            "request_json",
            Schema::OneOrMany(&JSON_FIELD),
            "The number of output tokens in this field of the request; of several, the largest.",
        ),
        field(
            "default",
            Schema::Integer(1, u32::MAX as u64),
            "The estimate otherwise. 1 if absent.",
        ),
        field(
            "max",
            Schema::Integer(1, u32::MAX as u64),
            "Maximum estimate that a request can set.",
        ),
    ],
};

static WEIGHTS: Section = Section {
    what: "weights",
    one_of: &[],
    fields: &[
        field("input", WEIGHT, "Input tokens. 1 if absent."),
        field("cached", WEIGHT, "Input tokens that were read from a cache. As `input` if absent."),
        field(
            "cache_write",
            WEIGHT,
            "Input tokens that were written to a cache. As `input` if absent.",
        ),
        field("output", WEIGHT, "Output tokens. 1 if absent."),
    ],
};

static ROUTE_COST: Section = Section {
    what: "a route's cost",
    one_of: &[],
    fields: &[
        required("match", Schema::Section(&MATCH), "Which requests."),
        required("cost", Schema::Integer(1, u32::MAX as u64), "Their cost."),
    ],
};

static RAMP: Section = Section {
    what: "a ramp",
    one_of: &[],
    fields: &[required(
        "enforce",
        PERCENT,
        "Enforced for this part of the keys, shadow mode for the others. The choice is stable per key.",
    )],
};

static WHEN_LIMITED: Section = Section {
    what: "a when_limited",
    one_of: &["queue", "serve_stale"],
    fields: &[
        field(
            "queue",
            DURATION,
            "Delay it until the limit allows it, at most this long (leaky_bucket).",
        ),
        field(
            "serve_stale",
            DURATION,
            "Respond to a GET with a cached response up to this old (gateway).",
        ),
    ],
};

static RESPONSES: Section = Section {
    what: "a responses section",
    one_of: &[],
    fields: &[
        field(
            "headers",
            Schema::OneOrMany(&Schema::Choice(&[
                ("ratelimit", "RateLimit and RateLimit-Policy (IETF draft). The default."),
                ("x-ratelimit", "X-RateLimit-Limit, -Remaining and -Reset."),
                ("none", "None except Retry-After on denials."),
            ])),
            "Which rate limit headers to send.",
        ),
        field(
            "on_allowed",
            Schema::Boolean,
            "Send them on responses to allowed requests too. True if absent.",
        ),
        field(
            "body",
            Schema::Choice(&[
                ("json", "A JSON object. The default."),
                ("problem", "Problem details (RFC 9457)."),
                ("text", "The message as plain text."),
            ]),
            "Format of the body of a denial.",
        ),
        field(
            "message",
            Schema::Text("a message"),
            "Message of denials, with the placeholders {limit}, {retry_after} and {quota}.",
        ),
        field("status", Schema::Integer(400, 599), "Status of a denial. 429 if absent."),
    ],
};

static OVERDRAFT_SECTION: Section = Section {
    what: "an overdraft",
    one_of: &[],
    fields: &[required(
        "max",
        Schema::Form {
            what: "a maximum debt such as 500, or 2x for twice the limit",
            pattern: r"^[0-9]+$|^[0-9]+(\.[0-9]{1,3})?\s*[xX]$",
        },
        "The most that a key may owe; what would exceed it is not charged.",
    )],
};
