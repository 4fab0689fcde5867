//! HAProxy with `option httplog`. Its times have no offset and count as UTC.

use crate::access_log::field::Field;
use crate::access_log::format::LineFormat;
use crate::access_log::template::Template;

pub(crate) fn format(lines: &[&str]) -> Option<LineFormat> {
    let parts = [
        (Field::Client, " ["),
        (Field::Time, "] "),
        // The frontend, and the backend with the server.
        (Field::Skip, " "),
        (Field::Skip, " "),
        (Field::Timers, " "),
        (Field::Status, " "),
        // Bytes, cookies, how it ended, connections, queues, captured headers.
        (Field::Skip, " \""),
        (Field::Request, "\""),
    ];
    let is_haproxy = |line: &&str| {
        let fields = without_syslog(line).split_once("] ").map(|(_, rest)| rest);
        let timers = fields.and_then(|fields| fields.split(' ').nth(2));
        timers.is_some_and(|timers| timers.matches('/').count() == 4)
    };
    let template = Template::new("", parts);
    lines.iter().any(is_haproxy).then_some(LineFormat::AfterSyslog(template))
}

/// Removes `Oct 10 13:55:36 host haproxy[17]: `, or the prefix of RFC 5424.
pub(crate) fn without_syslog(line: &str) -> &str {
    let Some(bracket) = line.find(" [") else { return line };
    let before = &line[..bracket];
    &line[before.rfind(' ').map_or(0, |space| space + 1)..]
}
