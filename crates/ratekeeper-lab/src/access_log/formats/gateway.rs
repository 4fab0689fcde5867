//! The gateway of this project.

use crate::access_log::field::{Field, MICROS, MILLIS};
use crate::access_log::format::LineFormat;
use crate::access_log::json::JsonFields;
use crate::access_log::template::Template;

pub(crate) fn text(lines: &[&str]) -> Option<LineFormat> {
    let parts = [
        (Field::Time, " "),
        (Field::Client, " "),
        (Field::Method, " "),
        (Field::Target, " "),
        (Field::Status, " "),
        // Bytes.
        (Field::Skip, " "),
        (MILLIS, " "),
        // The upstream or what refused it, and the request's id.
        (Field::Skip, " "),
        (Field::Skip, ""),
    ];
    let is_gateway = |line: &&str| line.split(' ').nth(6).is_some_and(|took| took.ends_with("ms"));
    lines.iter().any(is_gateway).then(|| LineFormat::Template(Template::new("", parts)))
}

pub(crate) fn json(lines: &[&str]) -> Option<LineFormat> {
    let fields = JsonFields::default()
        .with("at", Field::Time)
        .with("ip", Field::Client)
        .with("method", Field::Method)
        .with("target", Field::Target)
        .with("status", Field::Status)
        .with("took_us", MICROS);
    lines[0].contains("\"took_us\":").then_some(LineFormat::Json(fields))
}
