//! The file: every section and field. The fields of our own are said to be.

use crate::format::{DURATION, RATE, field, part, required};
use crate::shape::{Section, Shape};

pub(super) static FILE: Section = Section {
    what: "a rate limit file",
    one_of: &[],
    fields: &[
        required("domain", Shape::Text("a domain"), "The domain that requests name."),
        part("descriptors", Shape::List(&Shape::Section(&DESCRIPTOR)), "What is limited."),
    ],
};

static DESCRIPTOR: Section = Section {
    what: "a descriptor",
    one_of: &[],
    fields: &[
        required("key", Shape::Text("a key"), "The key of the entry."),
        part(
            "value",
            Shape::Anything("a value"),
            "Its value, with * for any run of characters; any value if absent.",
        ),
        part("rate_limit", Shape::Section(&RATE_LIMIT), "How much."),
        part(
            "rate_limits",
            Shape::List(&Shape::Section(&RATE_LIMIT)),
            "Our own: several limits, all of which have to be kept.",
        ),
        part(
            "descriptors",
            Shape::List(&Shape::Section(&DESCRIPTOR)),
            "What the next entry may be.",
        ),
        field("shadow_mode", Shape::Boolean, "Counted and reported, never refused."),
        field("quota_mode", Shape::Boolean, "Counted and reported, never refused."),
        field(
            "share_threshold",
            Shape::Boolean,
            "All values that the wildcard matches have one count.",
        ),
        field("detailed_metric", Shape::Boolean, "About metrics only."),
        field("value_to_metric", Shape::Boolean, "About metrics only."),
        part("metadata", Shape::Anything("anything"), "Means nothing here."),
    ],
};

static RATE_LIMIT: Section = Section {
    what: "a rate limit",
    one_of: &[],
    fields: &[
        field("unit", Shape::Text("a unit such as second or minute"), "Per what."),
        field(
            "requests_per_unit",
            Shape::Integer(0, u32::MAX as u64),
            "How many; 0 lets none pass.",
        ),
        field("unlimited", Shape::Boolean, "Let all pass."),
        field("name", Shape::Text("a name"), "Its name, for `replaces` and for answers."),
        part(
            "replaces",
            Shape::List(&Shape::Section(&REPLACED)),
            "Limits that do not count where this one does.",
        ),
        field("algorithm", ALGORITHM, "Our own: how it is counted."),
        field("period", DURATION, "Our own: any period, instead of a unit."),
        field("burst", Shape::Integer(1, u32::MAX as u64), "Our own: how many at once."),
        field("rate", RATE, "Our own: all of it at once, as in 100/minute burst 20."),
    ],
};

static REPLACED: Section = Section {
    what: "a replaced limit",
    one_of: &[],
    fields: &[required("name", Shape::Text("a name"), "The name of the limit.")],
};

const ALGORITHM: Shape = Shape::Choice(&[
    ("fixed_window", "A counter for each window. The default."),
    ("sliding_log", "Remembers each request; never more than the limit in a period."),
    ("sliding_counter", "Two counters for each key; smooth."),
    ("token_bucket", "A burst, then a steady rate. The default if there is a burst."),
    ("leaky_bucket", "A queue: lets out evenly spaced."),
]);
