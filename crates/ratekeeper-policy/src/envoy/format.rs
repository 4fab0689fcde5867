//! The format of rate limit files: every section and field. Extensions are marked as such.

use crate::format::{DURATION, OVERDRAFT, RATE, field, part, required};
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
            "Extension: several limits, all of which apply.",
        ),
        part(
            "descriptors",
            Schema::List(&Schema::Section(&DESCRIPTOR)),
            "What the next entry may be.",
        ),
        field("shadow_mode", Schema::Boolean, "Counted and reported, never denied."),
        field("quota_mode", Schema::Boolean, "Counted and reported, never denied."),
        field(
            "share_threshold",
            Schema::Boolean,
            "All values that the wildcard matches share one count.",
        ),
        field("detailed_metric", Schema::Boolean, "Affects metrics only."),
        field("value_to_metric", Schema::Boolean, "Affects metrics only."),
        part("metadata", Schema::Anything("anything"), "Ignored."),
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
            "Requests per unit; 0 denies all.",
        ),
        field("unlimited", Schema::Boolean, "Allow all requests."),
        field("name", Schema::Text("a name"), "Its name, for `replaces` and responses."),
        part(
            "replaces",
            Schema::List(&Schema::Section(&REPLACED)),
            "Limits that do not apply where this one does.",
        ),
        field("algorithm", ALGORITHM, "Extension: the algorithm that counts."),
        field("period", DURATION, "Extension: any period, instead of a unit."),
        field(
            "time_zone",
            Schema::Text("a time zone such as Europe/Berlin"),
            "Extension: counts per calendar hour, day, week or month in this time zone.",
        ),
        field(
            "first_day",
            Schema::Integer(1, 31),
            "Extension: the day on which a calendar month begins.",
        ),
        field("burst", Schema::Integer(1, u32::MAX as u64), "Extension: the burst size."),
        field(
            "overdraft",
            OVERDRAFT,
            "Extension: charge hits in full whatever is left; the default once requests look with 0 hits.",
        ),
        field(
            "rate",
            RATE,
            "Extension: a complete rate such as 100/minute burst 20 or 1000/calendar day.",
        ),
    ],
};

static REPLACED: Section = Section {
    what: "a replaced limit",
    one_of: &[],
    fields: &[required("name", Schema::Text("a name"), "The name of the limit.")],
};

const ALGORITHM: Schema = Schema::Choice(&[
    ("fixed_window", "A counter for each window. The default."),
    ("sliding_log", "A timestamp for each request; never more than the limit in any period."),
    ("sliding_counter", "Two counters for each key; smooth."),
    ("token_bucket", "A burst, then a steady rate. The default if there is a burst."),
    ("leaky_bucket", "A queue that admits requests evenly spaced."),
    ("gcra", "Another name of token_bucket."),
]);
