//! The fields of limits.

use super::protection::CONCURRENCY_BY_TIER;
use super::{
    DURATION, FAILURE_MODE, HEADER, JSON_FIELD, MATCH, NAME, OVERDRAFT, PERCENT, RATE, STATUS,
    WEIGHT, field, required,
};
use crate::schema::{Schema, Section};

pub(super) static GROUP: Section = Section {
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

pub(super) static LIMIT: Section = Section {
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
            CONCURRENCY_BY_TIER,
            "Maximum number of requests in flight, fixed or adaptive, with or without a queue; or one for each tier.",
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
            "guarantees",
            Schema::Map(&RATE),
            "Rate out of the limit that is guaranteed to each priority class or tier. All can borrow what is unused.",
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

pub(super) static OVERDRAFT_SECTION: Section = Section {
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
