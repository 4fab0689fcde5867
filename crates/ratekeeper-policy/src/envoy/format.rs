//! The file: every section and field. The fields of our own are said to be.

use crate::format::{DURATION, RATE, field, part, required};
use crate::schema::{Schema, Section};

pub(super) static FILE: Section = Section {
    what: "a rate limit file",
    one_of: &[],
    fields: &[
        required("domain", Schema::Text("a domain"), "The domain that requests name."),
        part("descriptors", Schema::List(&Schema::Section(&DESCRIPTOR)), "What is limited."),
    ],
};

static DESCRIPTOR: Section = Section {
    what: "a descriptor",
    one_of: &[],
    fields: &[
        required("key", Schema::Text("a key"), "The key of the entry."),
        part(
            "value",
            Schema::Anything("a value"),
            "Its value, with * for any run of characters; any value if absent.",
        ),
        part("rate_limit", Schema::Section(&RATE_LIMIT), "How much."),
        part(
            "rate_limits",
            Schema::List(&Schema::Section(&RATE_LIMIT)),
            "Our own: several limits, all of which have to be kept.",
        ),
        part(
            "descriptors",
            Schema::List(&Schema::Section(&DESCRIPTOR)),
            "What the next entry may be.",
        ),
        field("shadow_mode", Schema::Boolean, "Counted and reported, never refused."),
        field("quota_mode", Schema::Boolean, "Counted and reported, never refused."),
        field(
            "share_threshold",
            Schema::Boolean,
            "All values that the wildcard matches have one count.",
        ),
        field("detailed_metric", Schema::Boolean, "About metrics only."),
        field("value_to_metric", Schema::Boolean, "About metrics only."),
        part("metadata", Schema::Anything("anything"), "Means nothing here."),
    ],
};

static RATE_LIMIT: Section = Section {
    what: "a rate limit",
    one_of: &[],
    fields: &[
        field("unit", Schema::Text("a unit such as second or minute"), "Per what."),
        field(
            "requests_per_unit",
            Schema::Integer(0, u32::MAX as u64),
            "How many; 0 lets none pass.",
        ),
        field("unlimited", Schema::Boolean, "Let all pass."),
        field("name", Schema::Text("a name"), "Its name, for `replaces` and for answers."),
        part(
            "replaces",
            Schema::List(&Schema::Section(&REPLACED)),
            "Limits that do not count where this one does.",
        ),
        field("algorithm", ALGORITHM, "Our own: how it is counted."),
        field("period", DURATION, "Our own: any period, instead of a unit."),
        field("burst", Schema::Integer(1, u32::MAX as u64), "Our own: how many at once."),
        field("rate", RATE, "Our own: all of it at once, as in 100/minute burst 20."),
    ],
};

static REPLACED: Section = Section {
    what: "a replaced limit",
    one_of: &[],
    fields: &[required("name", Schema::Text("a name"), "The name of the limit.")],
};

const ALGORITHM: Schema = Schema::Choice(&[
    ("fixed_window", "A counter for each window. The default."),
    ("sliding_log", "Remembers each request; never more than the limit in a period."),
    ("sliding_counter", "Two counters for each key; smooth."),
    ("token_bucket", "A burst, then a steady rate. The default if there is a burst."),
    ("leaky_bucket", "A queue: lets out evenly spaced."),
]);
