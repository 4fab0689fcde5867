//! JSON that people configure in nginx, Apache and others: fields by their usual names.

use crate::access_log::field::{Field, MICROS, MILLIS, SECONDS, header};
use crate::access_log::format::LineFormat;
use crate::access_log::json::{HeaderOf, JsonFields};

pub(crate) fn json(lines: &[&str]) -> Option<LineFormat> {
    lines[0].trim_start().starts_with('{').then(|| LineFormat::Json(fields()))
}

fn fields() -> JsonFields {
    let names: &[(&[&str], Field)] = &[
        (
            &[
                "time_local",
                "time_iso8601",
                "msec",
                "time",
                "timestamp",
                "@timestamp",
                "ts",
                "date",
                "datetime",
                "start_time",
                "at",
            ],
            Field::Time,
        ),
        (
            &[
                "remote_addr",
                "client_ip",
                "clientip",
                "remote_ip",
                "client",
                "ip",
                "remote_host",
                "client_addr",
                "clientIp",
                "remoteIp",
                "remote_address",
            ],
            Field::Client,
        ),
        (&["remote_user", "user", "user_id", "auth_user"], Field::User),
        (&["request", "request_line"], Field::Request),
        (&["request_method", "method", "verb", "http_method", "requestMethod"], Field::Method),
        (&["request_uri", "url", "target", "requestUrl", "request_path"], Field::Target),
        (&["uri", "path", "document_uri"], Field::Target),
        (&["args", "query_string", "query"], Field::Query),
        (&["host", "http_host", "authority", "vhost", "server_name"], Field::Host),
        (&["status", "status_code", "response_code", "response", "code"], Field::Status),
        (&["request_time", "duration_s", "took"], SECONDS),
        (&["duration_ms", "request_time_ms", "latency_ms", "elapsed_ms"], MILLIS),
        (&["duration_us", "took_us"], MICROS),
        (&["http_referer", "referer", "referrer"], header("referer")),
        (&["http_user_agent", "user_agent", "agent"], header("user-agent")),
        (&["http_x_forwarded_for", "x_forwarded_for"], header("x-forwarded-for")),
        (&["http_cookie"], header("cookie")),
    ];
    let mut fields = JsonFields::default()
        .with_headers("headers", HeaderOf::Request)
        .with_headers("response_headers", HeaderOf::Response);
    for (names, field) in names {
        names.iter().for_each(|name| fields.add(name, field.clone()));
    }
    fields
}
