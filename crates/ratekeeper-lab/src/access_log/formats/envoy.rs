//! Envoy and Istio: the default format, and JSON with the usual names of its operators.

use crate::access_log::field::{Field, MILLIS, header};
use crate::access_log::format::LineFormat;
use crate::access_log::json::JsonFields;
use crate::access_log::template::Template;

pub(crate) fn text(lines: &[&str]) -> Option<LineFormat> {
    let tail = vec![
        (header("x-forwarded-for"), "\" \""),
        (header("user-agent"), "\" \""),
        (Field::Skip, "\" \""),
        (Field::Host, "\" \""),
        (Field::Skip, "\""),
    ];
    let head = [(Field::Time, "] \""), (Field::Request, "\" "), (Field::Status, " ")];
    let head = Template::new("[", head);
    // Bytes received and sent, the duration and that of the upstream.
    let middle = [(Field::Skip, " "), (Field::Skip, " "), (MILLIS, " "), (Field::Skip, " \"")];
    let is_istio = lines[0].split('"').nth(2).is_some_and(|fields| {
        // The status, the flags, the details of the response and of the connection.
        fields.split_whitespace().count() == 4
    });
    let template = match is_istio {
        false => head.followed_by("", [vec![(Field::Skip, " ")], middle.to_vec(), tail].concat()),
        true => {
            let start = vec![(Field::Skip, " \""), (Field::Skip, "\" ")];
            let template = head.followed_by("", [start, middle.to_vec(), tail].concat());
            // The cluster, the upstream's local address, the downstream's local and remote address.
            let end = vec![
                (Field::Skip, " "),
                (Field::Skip, " "),
                (Field::Skip, " "),
                (Field::Client, " "),
            ];
            template.followed_by(" ", end)
        }
    };
    lines[0].starts_with('[').then_some(LineFormat::Template(template))
}

pub(crate) fn json(lines: &[&str]) -> Option<LineFormat> {
    let line = lines[0];
    let is_envoy = line.starts_with('{')
        && ["\"response_code\"", "\"start_time\"", "\"response_flags\""]
            .iter()
            .filter(|name| line.contains(**name))
            .count()
            >= 2;
    is_envoy.then(|| LineFormat::Json(fields()))
}

fn fields() -> JsonFields {
    JsonFields::default()
        .with("start_time", Field::Time)
        .with("downstream_remote_address", Field::Client)
        .with("downstream_remote_address_without_port", Field::Client)
        .with("downstream_direct_remote_address", Field::Client)
        .with("method", Field::Method)
        .with("path", Field::Target)
        .with("authority", Field::Host)
        .with("response_code", Field::Status)
        .with("duration", MILLIS)
        .with("user_agent", header("user-agent"))
        .with("x_forwarded_for", header("x-forwarded-for"))
}
