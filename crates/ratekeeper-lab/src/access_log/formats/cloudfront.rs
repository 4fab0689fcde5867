//! CloudFront: columns that a line of `#Fields` names.

use crate::access_log::field::{Field, SECONDS, header};
use crate::access_log::format::LineFormat;
use crate::access_log::template::Template;

const FIELDS: &str = "#Fields: ";

pub(crate) fn format(lines: &[&str]) -> Option<LineFormat> {
    let names = lines.iter().find_map(|line| line.strip_prefix(FIELDS))?;
    // The date and the time are one field with a tab in it.
    let names = names.strip_prefix("date time ")?;
    let columns = names.split_whitespace().map(column).map(|field| (field, "\t"));
    let mut columns: Vec<_> = columns.collect();
    columns.last_mut()?.1 = "";
    let template = Template::new("", [(Field::Time, "\t")]).with_tab_in_time();
    Some(LineFormat::Commented(template.followed_by("", columns)))
}

fn column(name: &str) -> Field {
    match name {
        "c-ip" => Field::Client,
        "cs-method" => Field::Method,
        "x-host-header" => Field::Host,
        "cs-uri-stem" => Field::Path,
        "cs-uri-query" => Field::Query,
        "sc-status" => Field::Status,
        "cs(Referer)" => header("referer"),
        "cs(User-Agent)" => header("user-agent"),
        "cs(Cookie)" => header("cookie"),
        "x-forwarded-for" => header("x-forwarded-for"),
        "time-taken" => SECONDS,
        _ => Field::Skip,
    }
}
