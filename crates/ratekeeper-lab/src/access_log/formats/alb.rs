//! Application Load Balancers of AWS.

use crate::access_log::field::{Field, header};
use crate::access_log::format::LineFormat;
use crate::access_log::template::Template;

const PART: Field = Field::DurationPart(1_000_000_000);

pub(crate) fn format(lines: &[&str]) -> Option<LineFormat> {
    let parts = [
        // The type.
        (Field::Skip, " "),
        (Field::Time, " "),
        // The load balancer.
        (Field::Skip, " "),
        (Field::Client, " "),
        // The target.
        (Field::Skip, " "),
        (PART, " "),
        (PART, " "),
        (PART, " "),
        (Field::Status, " "),
        // The status of the target, bytes received and sent.
        (Field::Skip, " \""),
        (Field::Request, "\" \""),
        (header("user-agent"), "\""),
    ];
    let types = ["http ", "https ", "h2 ", "grpcs ", "ws ", "wss "];
    let is_alb = |line: &&str| types.iter().any(|of| line.starts_with(of));
    lines.iter().any(is_alb).then(|| LineFormat::Template(Template::new("", parts)))
}
