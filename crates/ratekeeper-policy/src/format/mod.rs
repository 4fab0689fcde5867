//! The format of policy files: every section and field, with the description shown by editors.

mod limit;
mod protection;

use crate::refusals::RefusalSettings;
use crate::schema::{Field, Schema, Section};

use limit::{GROUP, LIMIT, OVERDRAFT_SECTION};
pub(crate) use protection::CONCURRENCY_SECTION;
use protection::{DEPENDENCY, PRIORITY, SHEDDING};

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
            "Priority classes of requests, the most important first. Limits give them shares.",
        ),
        field(
            "shedding",
            Schema::Section(&SHEDDING),
            "Rejects requests under overload, the least important class first.",
        ),
        part(
            "dependencies",
            Schema::Map(&Schema::Section(&DEPENDENCY)),
            "What the service calls: how often, how much at a time, and when to stop.",
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
        part(
            "refusals",
            Schema::Section(&REFUSALS),
            "The log of recent refusals, which `ratekeeper why` reads.",
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
        "host",
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
        field(
            "host",
            Schema::Boolean,
            "The host that the request is for; for a client's requests, with its port.",
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
static REFUSALS: Section = Section {
    what: "a refusals section",
    one_of: &[],
    fields: &[
        field(
            "keys",
            Schema::Choice(&[
                ("plain", "The key. The default."),
                ("hashed", "A hash of the key, whose secret changes with the process."),
                ("off", "Nothing."),
            ]),
            "What to keep of the keys of refused requests.",
        ),
        field(
            "capacity",
            Schema::Integer(0, RefusalSettings::CAPACITY_MAX as u64),
            "Maximum number of refusals in memory; 0 disables the log. 2048 if absent.",
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
