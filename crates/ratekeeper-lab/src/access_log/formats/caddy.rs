//! Caddy: JSON with the request as an object.

use crate::access_log::field::{Field, SECONDS};
use crate::access_log::format::LineFormat;
use crate::access_log::json::{HeaderOf, JsonFields};

pub(crate) fn json(lines: &[&str]) -> Option<LineFormat> {
    // The client that a trusted proxy forwarded follows the address of the peer.
    let request = JsonFields::default()
        .with("client_ip", Field::Client)
        .with("remote_ip", Field::Client)
        .with("method", Field::Method)
        .with("host", Field::Host)
        .with("uri", Field::Target)
        .with_headers("headers", HeaderOf::Request);
    let fields = JsonFields::default()
        .with("ts", Field::Time)
        .with_object("request", request)
        .with("user_id", Field::User)
        .with("duration", SECONDS)
        .with("status", Field::Status)
        .with_headers("resp_headers", HeaderOf::Response);
    let is_caddy = lines.iter().any(|line| line.contains("\"request\":{"));
    is_caddy.then_some(LineFormat::Json(fields))
}
