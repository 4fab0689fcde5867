//! The fields that protect services: concurrency and its queue, load shedding, dependencies.

use super::{DURATION, MATCH, NAME, PERCENT, RATE, field, required};
use crate::schema::{Schema, Section};

const PERMITS: Schema = Schema::Integer(1, 1 << 32);

/// Of a limit or a dependency: a number, or a section.
pub(super) const CONCURRENCY: Schema =
    Schema::Either(&[PERMITS, Schema::Section(&CONCURRENCY_SECTION)]);

/// As [`CONCURRENCY`], or one for each tier.
pub(super) const CONCURRENCY_BY_TIER: Schema = Schema::Either(&[
    PERMITS,
    Schema::SectionOrMap {
        section: &CONCURRENCY_SECTION,
        map: &Schema::Map(&Schema::Either(&[
            PERMITS,
            Schema::Section(&CONCURRENCY_SECTION),
            Schema::Choice(&[("unlimited", "")]),
        ])),
    },
]);

pub(crate) static CONCURRENCY_SECTION: Section = Section {
    what: "a concurrency",
    one_of: &["max", "adaptive"],
    fields: &[
        field("max", PERMITS, "Maximum number of requests in flight."),
        field(
            "adaptive",
            Schema::Either(&[Schema::Boolean, Schema::Section(&ADAPTIVE)]),
            "The maximum is learned from latency and throughput, in each process. `true` has the default algorithm and bounds.",
        ),
        field(
            "queue",
            Schema::Section(&QUEUE),
            "Requests that wait while the maximum is in flight. None wait if absent.",
        ),
    ],
};

static ADAPTIVE: Section = Section {
    what: "an adaptive limit",
    one_of: &[],
    fields: &[
        field(
            "algorithm",
            Schema::Choice(&[
                ("knee", "Latency without queueing, times throughput. The default."),
                ("gradient2", "Latency against its long-term average."),
                ("vegas", "A short queue, estimated from latency."),
                ("aimd", "Grows until requests time out or get 503, then shrinks."),
            ]),
            "How the limit is found.",
        ),
        field("min", PERMITS_OF_CONTROLLER, "Lowest limit. 1 if absent."),
        field("initial", PERMITS_OF_CONTROLLER, "First limit. 20 if absent, within min and max."),
        field("max", PERMITS_OF_CONTROLLER, "Highest limit. 1000 if absent."),
        field(
            "target",
            DURATION,
            "Latency that 90% of the requests should not exceed. The limit shrinks while they do.",
        ),
    ],
};

const PERMITS_OF_CONTROLLER: Schema = Schema::Integer(1, u32::MAX as u64);

static QUEUE: Section = Section {
    what: "a queue",
    one_of: &[],
    fields: &[
        required("max", Schema::Integer(1, 1_000_000), "Maximum number of requests that wait."),
        required("wait", DURATION, "Longest time that a request waits."),
        field(
            "order",
            Schema::Choice(&[
                ("fifo", "First come, first served. The default."),
                ("adaptive_lifo", "Newest first while the queue has not been empty for 100 ms."),
            ]),
            "Which of the requests that wait is served next.",
        ),
    ],
};

pub(super) static PRIORITY: Section = Section {
    what: "a priority",
    one_of: &[],
    fields: &[
        required("class", NAME, "The class of these requests."),
        field(
            "match",
            Schema::Section(&MATCH),
            "Which requests. The class without a match has all others.",
        ),
        field(
            "reserved",
            PERCENT,
            "Share of what is admitted that the class keeps while requests are shed.",
        ),
    ],
};

pub(super) static SHEDDING: Section = Section {
    what: "a shedding section",
    one_of: &[],
    fields: &[
        field("queue_time", DURATION, "Overload is a queueing time above this. 20ms if absent."),
        field("utilization", PERCENT, "Overload is a utilization above this. 80% if absent."),
        field(
            "interval",
            DURATION,
            "How long a signal has to stay above its target. 100ms if absent.",
        ),
        field(
            "per",
            Schema::OneOrMany(&NAME),
            "The identity that is the user: within a class, users are shed. `ip` if absent.",
        ),
        field("rotation", DURATION, "How long the same users are served. 1h if absent."),
        field(
            "seed",
            Schema::Text("a secret text"),
            "Secret that decides which users are shed first; the same in all processes.",
        ),
    ],
};

pub(super) static DEPENDENCY: Section = Section {
    what: "a dependency",
    one_of: &[],
    fields: &[
        field("match", Schema::Section(&MATCH), "The requests of the gateway that need it."),
        field(
            "per",
            Schema::Choice(&[("upstream", "One of each for every upstream of the gateway.")]),
            "Protects each upstream of the gateway by itself.",
        ),
        field("rate", RATE, "Maximum rate of calls. Those above it are rejected."),
        field("concurrency", CONCURRENCY, "Maximum number of calls in flight."),
        field(
            "breaker",
            Schema::Either(&[Schema::Boolean, Schema::Section(&BREAKER)]),
            "Circuit breaker: stops calls while most of them fail. `true` has the default thresholds.",
        ),
    ],
};

static BREAKER: Section = Section {
    what: "a breaker",
    one_of: &[],
    fields: &[
        field(
            "failure_rate",
            PERCENT,
            "Opens if this share of calls has failed. 50% if no threshold is set.",
        ),
        field("slow_calls", Schema::Section(&SLOW_CALLS), "Opens if this share of calls is slow."),
        field(
            "consecutive_failures",
            Schema::Integer(1, u32::MAX as u64),
            "Opens after this many failures in a row.",
        ),
        field(
            "window",
            Schema::Form {
                what: "a number of calls or a duration, such as 100 calls or 30s",
                pattern: r"^[0-9]+\s*[a-zA-Zµ]+$",
            },
            "The calls that rates are computed of. 100 calls if absent.",
        ),
        field(
            "minimum_calls",
            Schema::Integer(1, u32::MAX as u64),
            "Calls that the window must have before a rate counts. 20 if absent.",
        ),
        field(
            "wait",
            Schema::Either(&[DURATION, Schema::Section(&BREAKER_WAIT)]),
            "How long it stays open. 5s if absent, doubling up to 60s while probes fail.",
        ),
        field(
            "probes",
            Schema::Either(&[Schema::Integer(1, 1024), Schema::Section(&PROBE_RAMP)]),
            "Calls that a half-open breaker permits. 5 if absent.",
        ),
        field(
            "probe_timeout",
            DURATION,
            "After this, a probe without a result counts as failed. 60s if absent.",
        ),
    ],
};

static SLOW_CALLS: Section = Section {
    what: "a slow_calls section",
    one_of: &[],
    fields: &[
        required("rate", PERCENT, "The share of slow calls that opens the breaker."),
        required("longer_than", DURATION, "A call that takes longer is slow."),
    ],
};

static BREAKER_WAIT: Section = Section {
    what: "a wait",
    one_of: &[],
    fields: &[
        required("first", DURATION, "The first time."),
        required("max", DURATION, "Longest; the wait doubles up to it while probes fail."),
    ],
};

static PROBE_RAMP: Section = Section {
    what: "a ramp of probes",
    one_of: &[],
    fields: &[required(
        "ramp",
        Schema::Integer(1, u32::MAX as u64),
        "One call at a time, then two, then four, up to this many.",
    )],
};
