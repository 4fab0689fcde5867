//! The policy file: every section and field, with what an editor should say about it.

use crate::schema::{Field, Schema, Section};

pub(crate) const fn field(name: &'static str, schema: Schema, doc: &'static str) -> Field {
    Field { name, is_required: false, may_be_empty: false, schema, doc }
}

/// A part of the file that may stand there without anything in it.
pub(crate) const fn part(name: &'static str, schema: Schema, doc: &'static str) -> Field {
    Field { name, is_required: false, may_be_empty: true, schema, doc }
}

pub(crate) const fn required(name: &'static str, schema: Schema, doc: &'static str) -> Field {
    Field { name, is_required: true, may_be_empty: false, schema, doc }
}

pub(crate) const RATE: Schema = Schema::Form {
    what: "a rate such as 100/minute or 5/s burst 10",
    pattern: r"^\s*[0-9].*(/|per).*$|^unlimited$",
};
pub(crate) const DURATION: Schema =
    Schema::Form { what: "a duration such as 500ms or 10s", pattern: r"^[0-9]+\s*[a-zµ]+$" };
const PERCENT: Schema =
    Schema::Form { what: "a percentage such as 25%", pattern: r"^[0-9]+(\.[0-9]{1,2})?%$" };
const PATH: Schema =
    Schema::Form { what: "a path such as /checkout, /users/{id} or /static/**", pattern: "^/" };
const NETWORK: Schema = Schema::Text("an address or network such as 10.0.0.0/8");
const NAME: Schema = Schema::Text("a name");
const HEADER: Schema = Schema::Text("the name of a header");
const STATUS: Schema =
    Schema::Form { what: "a status such as 304, or 5xx", pattern: "^[1-5]([0-9][0-9]|xx)$" };

pub(crate) static POLICY: Section = Section {
    what: "a policy",
    one_of: &[],
    fields: &[
        required("version", Schema::Integer(1, 1), "The version of this format: 1."),
        part("store", Schema::Section(&STORE), "Where counts are kept. In memory if absent."),
        part("jwt", Schema::Section(&JWT), "How tokens are verified, for identities of jwt_claim."),
        part(
            "identify",
            Schema::Map(&Schema::Section(&IDENTITY)),
            "Who is asking: names of your own, each with where it is found. `ip` is always there.",
        ),
        part("tiers", Schema::Section(&TIERS), "Which rates a caller gets."),
        part(
            "priorities",
            Schema::List(&Schema::Section(&PRIORITY)),
            "Classes of requests; the first that matches. Limits give them shares.",
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
        part("answers", Schema::Section(&ANSWERS), "How a caller is told."),
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
        field("prefix", Schema::Text("a prefix"), "What keys begin with in Redis."),
        field(
            "deadline",
            DURATION,
            "How long one decision may take before the store counts as down. 5ms if absent.",
        ),
        field(
            "on_failure",
            FAILURE_MODE,
            "What limits do while the store is unavailable, unless a limit sets on_store_failure.",
        ),
        field(
            "leased",
            Schema::Boolean,
            "Serve hot keys from memory, with units taken from the store beforehand.",
        ),
        field(
            "keys_max",
            Schema::Integer(1, 1 << 32),
            "How many keys are kept in memory at most. A million if absent.",
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
        field("jwks_file", Schema::Text("a file"), "A set of keys (JWKS) in JSON."),
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
            "Only these, of those that fit the key.",
        ),
        field("issuer", NAME, "What `iss` must be."),
        field("audience", NAME, "What `aud` must contain."),
        field("leeway", DURATION, "How far clocks may differ. 30s if absent."),
        field(
            "header",
            HEADER,
            "Where the token is. `authorization` if absent, which needs `Bearer` before the token.",
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
        "client_ip",
        "constant",
        "custom",
        "first_of",
        "all_of",
    ],
    fields: &[
        field("header", HEADER, "The value of this header."),
        field("cookie", NAME, "The value of this cookie."),
        field("query", NAME, "The value of this parameter of the query."),
        field("path_segment", Schema::Integer(1, 64), "This segment of the path, counted from 1."),
        field("jwt_claim", NAME, "This claim of the verified token; dots lead into objects."),
        field(
            "client_ip",
            Schema::Either(&[Schema::Section(&CLIENT_IP), Schema::Boolean]),
            "The address of the client; of its /64 network if it is IPv6.",
        ),
        field("constant", NAME, "Always this value."),
        field("custom", Schema::Boolean, "Given by the program that uses the policy."),
        field("first_of", Schema::List(&NAME), "The first of these identities that is there."),
        field("all_of", Schema::List(&NAME), "All of these identities together."),
        field(
            "missing",
            Schema::Choice(&[
                ("ip", "The client's address stands in. The default."),
                ("anonymous", "All requests without it count as one caller."),
                ("deny", "They are refused with 401."),
            ]),
            "What becomes of a request without it, where a limit is per this identity.",
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
            "Whose word about the client is believed.",
        ),
        field(
            "forwarded_by",
            Schema::Choice(&[
                ("x-forwarded-for", "X-Forwarded-For, the default."),
                ("forwarded", "Forwarded (RFC 7239)."),
                ("x-real-ip", "X-Real-IP."),
            ]),
            "The header in which trusted proxies tell it.",
        ),
        field(
            "ipv4_prefix",
            Schema::Integer(8, 32),
            "How much of an IPv4 address counts. 32 if absent.",
        ),
        field(
            "ipv6_prefix",
            Schema::Integer(16, 128),
            "How much of an IPv6 address counts. 64 if absent.",
        ),
    ],
};

static TIERS: Section = Section {
    what: "a tiers section",
    one_of: &["members", "names"],
    fields: &[
        required("of", NAME, "The identity whose tier it is."),
        field("members", Schema::Map(&NAME), "The tier of each value of that identity."),
        field(
            "names",
            Schema::List(&NAME),
            "The value is itself a tier: one of these. For a claim or a header that can be trusted.",
        ),
        required("default", NAME, "The tier of everybody else."),
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
            "All of these headers: a value, true if it is there, false if it is not.",
        ),
        field(
            "query",
            Schema::Map(&Schema::Either(&[
                Schema::Boolean,
                Schema::OneOrMany(&Schema::Text("a value, with * for any run of characters")),
            ])),
            "All of these parameters, as for headers.",
        ),
        field("ip", Schema::OneOrMany(&NETWORK), "Clients of any of these networks."),
        field("tier", Schema::OneOrMany(&NAME), "Callers of any of these tiers."),
        field("not", Schema::OneOrMany(&Schema::Section(&MATCH)), "None of these."),
    ],
};

static GROUP: Section = Section {
    what: "a group",
    one_of: &["first", "all"],
    fields: &[
        field("match", Schema::Section(&MATCH), "Which requests the group is about."),
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
        required(
            "name",
            NAME,
            "Its name: in answers, in metrics, and what its counts are kept under.",
        ),
        field("match", Schema::Section(&MATCH), "Which requests. All if absent."),
        field(
            "per",
            Schema::OneOrMany(&NAME),
            "Counted for each of these identities together. One count for all if absent.",
        ),
        field(
            "rate",
            Schema::Either(&[RATE, Schema::Map(&RATE)]),
            "How much, or for each tier how much; `unlimited` for a tier without.",
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
            "How many at a time, or for each tier how many.",
        ),
        field(
            "algorithm",
            Schema::Choice(&[
                (
                    "fixed_window",
                    "A counter for each window; up to twice the limit around a boundary.",
                ),
                ("sliding_log", "Remembers each request; never more than the limit in a period."),
                ("sliding_counter", "Two counters for each key; smooth. The default."),
                (
                    "token_bucket",
                    "A burst, then a steady rate. The default if the rate has a burst.",
                ),
                ("leaky_bucket", "A queue: lets out evenly spaced."),
            ]),
            "How it is counted.",
        ),
        field("count_rejected", Schema::Boolean, "Count denied requests too (sliding_log)."),
        field(
            "cost",
            Schema::Either(&[Schema::Integer(1, u32::MAX as u64), Schema::Section(&COST)]),
            "How much a request takes. 1 if absent.",
        ),
        field(
            "mode",
            Schema::Either(&[
                Schema::Choice(&[
                    ("enforce", "What does not fit is refused. The default."),
                    ("shadow", "Counted and reported, never refused."),
                    ("off", "Not even counted."),
                ]),
                Schema::Section(&RAMP),
            ]),
            "What it does.",
        ),
        field("on_store_failure", FAILURE_MODE, "What to do while the store is unavailable."),
        field(
            "when_limited",
            Schema::Either(&[
                Schema::Choice(&[("reject", "Answer 429. The default.")]),
                Schema::Section(&WHEN_LIMITED),
            ]),
            "What becomes of a request that does not fit.",
        ),
        field(
            "refund",
            Schema::OneOrMany(&STATUS),
            "ResponseSettings that do not count: what was charged is given back.",
        ),
        field(
            "shares",
            Schema::Map(&PERCENT),
            "How much of it each priority class may take at most.",
        ),
        field(
            "message",
            Schema::Text("a message"),
            "What a refused caller is told, instead of the message in `answers`.",
        ),
    ],
};

static COST: Section = Section {
    what: "a cost",
    one_of: &["request_header", "response_header", "routes"],
    fields: &[
        field("request_header", HEADER, "The number in this header of the request."),
        field(
            "response_header",
            HEADER,
            "The number in this header of the answer; until then, `default`.",
        ),
        field(
            "routes",
            Schema::List(&Schema::Section(&ROUTE_COST)),
            "The cost of the first of these that matches.",
        ),
        field("default", Schema::Integer(1, u32::MAX as u64), "Otherwise this. 1 if absent."),
        field(
            "max",
            Schema::Integer(1, u32::MAX as u64),
            "Whatever a header says, no more than this.",
        ),
    ],
};

static ROUTE_COST: Section = Section {
    what: "a route's cost",
    one_of: &[],
    fields: &[
        required("match", Schema::Section(&MATCH), "Which requests."),
        required("cost", Schema::Integer(1, u32::MAX as u64), "How much they take."),
    ],
};

static RAMP: Section = Section {
    what: "a ramp",
    one_of: &[],
    fields: &[required(
        "enforce",
        PERCENT,
        "Enforced for this part of the keys, shadow for the others. A key is always on the same side.",
    )],
};

static WHEN_LIMITED: Section = Section {
    what: "a when_limited",
    one_of: &["queue", "serve_stale"],
    fields: &[
        field(
            "queue",
            DURATION,
            "Hold it until there is room, for so long at most (leaky_bucket).",
        ),
        field(
            "serve_stale",
            DURATION,
            "Answer a GET from what was answered before, if that is no older than this (gateway).",
        ),
    ],
};

static ANSWERS: Section = Section {
    what: "an answers section",
    one_of: &[],
    fields: &[
        field(
            "headers",
            Schema::OneOrMany(&Schema::Choice(&[
                ("ratelimit", "RateLimit and RateLimit-Policy, the standard to be. The default."),
                ("x-ratelimit", "X-RateLimit-Limit, -Remaining and -Reset."),
                ("none", "None, but Retry-After on refusals."),
            ])),
            "Which headers tell what is left.",
        ),
        field(
            "on_allowed",
            Schema::Boolean,
            "Tell it on answers to allowed requests too. True if absent.",
        ),
        field(
            "body",
            Schema::Choice(&[
                ("json", "A small JSON object. The default."),
                ("problem", "Problem details (RFC 9457)."),
                ("text", "The message alone."),
            ]),
            "The body of a refusal.",
        ),
        field(
            "message",
            Schema::Text("a message"),
            "What a refused caller is told; {limit}, {retry_after} and {quota} are filled in.",
        ),
        field("status", Schema::Integer(400, 599), "The status of a refusal. 429 if absent."),
    ],
};
