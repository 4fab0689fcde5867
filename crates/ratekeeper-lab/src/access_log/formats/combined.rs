//! The common log format and the combined one, with what may follow.

use crate::access_log::field::{Field, SECONDS, address, header};
use crate::access_log::format::LineFormat;
use crate::access_log::record::AccessRecord;
use crate::access_log::template::Template;
use crate::access_log::time::TimeCache;

pub(crate) fn combined(lines: &[&str]) -> Option<LineFormat> {
    extended(combined_template(), " ", lines)
}

pub(crate) fn common(lines: &[&str]) -> Option<LineFormat> {
    extended(common_template(), "", lines)
}

/// The template up to the number of bytes.
fn common_template() -> Template {
    let parts = [
        (Field::Client, " "),
        (Field::Skip, " "),
        (Field::User, " ["),
        (Field::Time, "] \""),
        (Field::Request, "\" "),
        (Field::Status, " "),
    ];
    Template::new("", parts)
}

/// The template up to the end of the user agent.
pub(super) fn combined_template() -> Template {
    Template::new(
        "",
        [
            (Field::Client, " "),
            (Field::Skip, " "),
            (Field::User, " ["),
            (Field::Time, "] \""),
            (Field::Request, "\" "),
            (Field::Status, " "),
            (Field::Skip, " \""),
            (header("referer"), "\" \""),
            (header("user-agent"), "\""),
        ],
    )
}

/// Adds fields for what follows the template in most lines: times in seconds, and `X-Forwarded-For` in quotes.
fn extended(template: Template, gap: &str, lines: &[&str]) -> Option<LineFormat> {
    let rest = lines.iter().find_map(|line| {
        let (mut record, mut times) = (AccessRecord::default(), TimeCache::default());
        let rest = template.rest_after(line, &mut times, &mut record).ok()?;
        rest.contains(|c: char| c.is_ascii_digit()).then_some(rest)
    });
    let fields: Vec<Field> = rest.map(following).unwrap_or_default();
    if fields.is_empty() || fields.iter().all(|field| *field == Field::Skip) {
        return Some(LineFormat::Template(template));
    }
    let quoted = rest.is_some_and(|rest| rest.trim_start().starts_with('"'));
    let ends = tokens(rest.unwrap_or_default());
    let mut parts = Vec::new();
    for (i, field) in fields.into_iter().enumerate() {
        let next_is_quoted = ends.get(i + 1).map(|token| token.starts_with('"'));
        let until = match (ends[i].starts_with('"'), next_is_quoted) {
            (true, Some(true)) => "\" \"",
            (true, Some(false)) => "\" ",
            (true, None) => "\"",
            (false, Some(true)) => " \"",
            (false, Some(false)) => " ",
            (false, None) => "",
        };
        parts.push((field, until));
    }
    let start = if quoted { format!("{gap}\"") } else { gap.to_string() };
    Some(LineFormat::Template(template.followed_by(&start, parts)))
}

/// The words of a text and its texts in quotes.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"') {
            Some(quoted) => quoted.find('"').map_or(rest.len(), |end| end + 2),
            None => rest.find(' ').unwrap_or(rest.len()),
        };
        tokens.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    tokens
}

fn following(rest: &str) -> Vec<Field> {
    let mut has_time = false;
    let fields = tokens(rest).into_iter().map(|token| {
        let text = token.trim_matches('"');
        let is_list = text.split(',').all(|entry| address(entry.trim()).is_some());
        let is_time = text.contains('.') && text.parse::<f64>().is_ok();
        if is_list {
            return header("x-forwarded-for");
        }
        if !is_time || has_time {
            return Field::Skip;
        }
        has_time = true;
        SECONDS
    });
    fields.collect()
}
