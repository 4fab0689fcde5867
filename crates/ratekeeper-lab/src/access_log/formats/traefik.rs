//! Traefik: its common log format with fields of its own, and JSON.

use super::combined::combined_template;
use crate::access_log::field::{Field, MILLIS, NANOS};
use crate::access_log::format::LineFormat;
use crate::access_log::json::{HeaderOf, JsonFields};

/// The count of requests, the router, the server and the duration.
pub(crate) fn text(_: &[&str]) -> Option<LineFormat> {
    let parts =
        vec![(Field::Skip, " \""), (Field::Skip, "\" \""), (Field::Skip, "\" "), (MILLIS, "")];
    Some(LineFormat::Template(combined_template().followed_by(" ", parts)))
}

pub(crate) fn json(lines: &[&str]) -> Option<LineFormat> {
    let fields = JsonFields::default()
        .with("StartUTC", Field::Time)
        .with("ClientHost", Field::Client)
        .with("ClientUsername", Field::User)
        .with("RequestMethod", Field::Method)
        .with("RequestPath", Field::Target)
        .with("RequestHost", Field::Host)
        .with("DownstreamStatus", Field::Status)
        .with("Duration", NANOS)
        .with_header_prefix("request_", HeaderOf::Request)
        .with_header_prefix("downstream_", HeaderOf::Response);
    lines[0].contains("\"DownstreamStatus\"").then_some(LineFormat::Json(fields))
}
