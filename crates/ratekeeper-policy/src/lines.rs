//! Policies written in lines, such as `100/minute per ip`.

use std::fmt::Write as _;

use crate::build::is_standard_method;
use crate::policy::{NoSources, Policy};
use crate::problems::PolicyErrors;

const PER: &str = " per ";
const FOR: &str = " for ";
const AND: &str = " and ";
const IN_FLIGHT: &str = " in flight";
const KINDS: [&str; 4] = ["header", "cookie", "query", "custom"];
const IDENTITIES: &str = "ip or host, or header, cookie, query or custom and a name";
const ROUTE: &str = "write a route as POST /v1/chat/**";

impl Policy {
    /// Parses a policy with one limit, called `default`: a rate, and optionally `per` and what to count by:
    /// `ip`, `host`, or `header`, `cookie`, `query` or `custom` and a name. Without `per`, all requests share
    /// one count.
    ///
    /// | line | limit |
    /// |---|---|
    /// | `100/minute per ip` | a rate for each client |
    /// | `5/s burst 10 per header x-api-key` | a rate for each value of a header |
    /// | `100/s per host and header authorization` | a rate for each pair |
    /// | `10 in flight per host` | a number of requests at a time |
    /// | `5/s per host for POST /v1/chat/**` | a rate for a route: a method, a path, or both |
    ///
    /// ```
    /// # use ratekeeper_policy as ratekeeper;
    /// use ratekeeper::Policy;
    ///
    /// Policy::one_line("100/minute per ip")?;
    /// Policy::one_line("5/s burst 10 per header x-api-key")?;
    /// assert!(Policy::one_line("100/minute per moon").is_err());
    /// # Ok::<(), ratekeeper_policy::PolicyErrors>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the text.
    pub fn one_line(text: &str) -> Result<Self, PolicyErrors> {
        let mut lines = Lines::default();
        lines.add(text)?;
        lines.parse(text)
    }

    /// Parses a policy with several limits, a line for each as in [`Policy::one_line`]. A request is charged to
    /// all that apply to it, or to none. The limits are called after what they count by, and their counts are
    /// kept under that name: `host`, `host:in-flight`, `host:POST:/v1/chat/__`.
    ///
    /// ```
    /// # use ratekeeper_policy as ratekeeper;
    /// use ratekeeper::Policy;
    ///
    /// let policy = Policy::lines(["100/s per host", "10 in flight per host"])?;
    /// assert_eq!(policy.limits()[1].name(), "host:in-flight");
    /// # Ok::<(), ratekeeper_policy::PolicyErrors>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the text.
    pub fn lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, PolicyErrors> {
        let mut parsed = Lines::default();
        let mut text = String::new();
        for line in lines {
            parsed.add(line)?;
            let _ = write!(text, "{}{line}", if text.is_empty() { "" } else { ", " });
        }
        parsed.parse(&text)
    }
}

/// The parts of a policy that lines describe.
#[derive(Default)]
struct Lines {
    /// Name and source of each identity, as YAML.
    identities: Vec<(String, String)>,
    limits: Vec<LineLimit>,
}

/// What is wrong with a line.
struct Mistake(String);

/// One limit: its fields as YAML, and what to call it if there are several.
struct LineLimit {
    name: String,
    fields: String,
}

impl Lines {
    fn add(&mut self, line: &str) -> Result<(), PolicyErrors> {
        self.add_limit(line).map_err(|Mistake(why)| PolicyErrors::plain(line, &why))
    }

    fn add_limit(&mut self, line: &str) -> Result<(), Mistake> {
        check_end(line)?;
        let (rest, route) = match split_last(line, FOR) {
            Some((rest, route)) => (rest, Some(route)),
            None => (line, None),
        };
        // The last `per` may belong to the rate: `100 per minute`.
        let is_amount =
            |text: &str| in_flight(text).is_some() || text.parse::<ratekeeper_core::Rate>().is_ok();
        let (amount, per) = match split_last(rest, PER) {
            Some((amount, per)) if is_amount(amount) => (amount, per.trim()),
            _ => (rest, ""),
        };
        let mut limit = LineLimit { name: String::new(), fields: String::new() };
        match in_flight(amount) {
            Some(count) => limit.field("concurrency", count),
            None => limit.field("rate", &quoted(amount.trim())),
        }
        self.add_per(&mut limit, per)?;
        if in_flight(amount).is_some() {
            limit.name_part("in-flight");
        }
        if let Some(route) = route {
            limit.add_route(route.trim())?;
        }
        self.limits.push(limit);
        Ok(())
    }

    fn add_per(&mut self, limit: &mut LineLimit, per: &str) -> Result<(), Mistake> {
        if matches!(per, "" | "everybody") {
            limit.name_part("all");
            return Ok(());
        }
        let mut names = Vec::new();
        let mut rest = per;
        while let Some((one, others)) = split_first(rest, AND) {
            names.push(self.identity(one.trim(), limit)?);
            rest = others;
        }
        names.push(self.identity(rest.trim(), limit)?);
        let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
        limit.field("per", &format!("[{}]", names.join(", ")));
        Ok(())
    }

    /// Returns the name of the identity that a line calls so.
    fn identity(&mut self, text: &str, limit: &mut LineLimit) -> Result<String, Mistake> {
        if matches!(text, "ip" | "host") {
            limit.name_part(text);
            return Ok(text.to_string());
        }
        let (kind, name) = match text.split_once(' ') {
            Some((kind, name)) if KINDS.contains(&kind) => (kind, name.trim()),
            _ => {
                let remedy = match text.split_once(" burst ") {
                    Some((name, burst)) => {
                        format!("the burst is part of the rate: 5/s burst {burst} per {name}")
                    }
                    None => format!("use {IDENTITIES}"),
                };
                return Err(Mistake(format!("cannot count by \"{text}\"; {remedy}")));
            }
        };
        limit.name_part(name);
        let source = match kind {
            "custom" => "custom: true".to_string(),
            kind => format!("{kind}: {}", quoted(name)),
        };
        if let Some((known, _)) =
            self.identities.iter().find(|(_, known)| *known == source && kind != "custom")
        {
            return Ok(known.clone());
        }
        let name = match (kind, self.identities.len()) {
            ("custom", _) => name.to_string(),
            (_, 0) => "caller".to_string(),
            (_, others) => format!("caller-{}", others + 1),
        };
        if self.identities.iter().all(|(known, _)| *known != name) {
            self.identities.push((name.clone(), source));
        }
        Ok(name)
    }

    fn parse(self, text: &str) -> Result<Policy, PolicyErrors> {
        let identities: Vec<_> = self
            .identities
            .iter()
            .map(|(name, source)| format!("{}: {{ {source} }}", quoted(name)))
            .collect();
        let names = distinct_names(&self.limits);
        let limits: Vec<_> = names
            .iter()
            .zip(&self.limits)
            .map(|(name, limit)| format!("{{ name: {}{} }}", quoted(name), limit.fields))
            .collect();
        let (identities, limits) = (identities.join(", "), limits.join(", "));
        let yaml = format!("version: 1\nidentify: {{ {identities} }}\nlimits: [{limits}]\n");
        // The positions are those of the generated text, so only the messages are kept.
        Policy::parse(text, &yaml, &NoSources).map_err(|errors| {
            let messages: Vec<_> = errors.problems().iter().map(|p| p.message()).collect();
            PolicyErrors::plain(text, &messages.join("; "))
        })
    }
}

impl LineLimit {
    fn field(&mut self, name: &str, value: &str) {
        let _ = write!(self.fields, ", {name}: {value}");
    }

    fn name_part(&mut self, part: &str) {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if !self.name.is_empty() {
            self.name.push(':');
        }
        self.name.extend(part.chars().map(|c| if is_allowed(c) { c } else { '_' }));
    }

    fn add_route(&mut self, route: &str) -> Result<(), Mistake> {
        let (method, path) = match route.split_once(' ') {
            Some((method, path)) => (Some(method), Some(path.trim())),
            None if route.starts_with('/') => (None, Some(route)),
            None => (Some(route), None),
        };
        if path.is_some_and(|path| !path.starts_with('/')) {
            return Err(Mistake(format!("cannot match \"{route}\"; {ROUTE}")));
        }
        // Where a policy file has a warning, a line has nothing to show it.
        if let Some(method) = method.filter(|method| !is_standard_method(method)) {
            return Err(Mistake(format!("\"{method}\" is not a method of HTTP; {ROUTE}")));
        }
        let parts = [("method", method), ("path", path)];
        let given = parts.into_iter().filter_map(|(field, value)| Some((field, value?)));
        let fields: Vec<_> = given
            .map(|(field, value)| {
                self.name_part(value);
                format!("{field}: {}", quoted(value))
            })
            .collect();
        self.field("match", &format!("{{ {} }}", fields.join(", ")));
        Ok(())
    }
}

/// Returns what the limits are called: `default` if there is one, and different names in any case.
fn distinct_names(limits: &[LineLimit]) -> Vec<String> {
    const NAME_MAX: usize = 60;
    if limits.len() == 1 {
        return vec!["default".to_string()];
    }
    let mut names: Vec<String> = Vec::new();
    for limit in limits {
        let name: String = limit.name.chars().take(NAME_MAX).collect();
        let is_taken = |name: &String| names.contains(name);
        let others = (2..).map(|n| format!("{name}-{n}"));
        let free = std::iter::once(name.clone()).chain(others).find(|name| !is_taken(name));
        names.extend(free);
    }
    names
}

/// Reports a line that ends where something has to follow.
fn check_end(line: &str) -> Result<(), Mistake> {
    let line = line.trim_end();
    let ends_with = |word: &str| line.to_ascii_lowercase().ends_with(word.trim_end());
    let missing = if ends_with(PER) || ends_with(AND) {
        format!("write what to count by: {IDENTITIES}")
    } else if ends_with(FOR) {
        ROUTE.to_string()
    } else {
        return Ok(());
    };
    Err(Mistake(format!("something is missing at the end; {missing}")))
}

/// Returns the number in `10 in flight`.
fn in_flight(text: &str) -> Option<&str> {
    let text = text.trim();
    let at = text.len().checked_sub(IN_FLIGHT.len())?;
    let (count, words) = (text.get(..at)?, text.get(at..)?);
    let is_count = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    (is_count && words.eq_ignore_ascii_case(IN_FLIGHT)).then_some(count)
}

/// Splits at the last of these words, which are read without regard to case.
fn split_last<'t>(text: &'t str, words: &str) -> Option<(&'t str, &'t str)> {
    let at = text.to_ascii_lowercase().rfind(words)?;
    Some((&text[..at], &text[at + words.len()..]))
}

fn split_first<'t>(text: &'t str, words: &str) -> Option<(&'t str, &'t str)> {
    let at = text.to_ascii_lowercase().find(words)?;
    Some((&text[..at], &text[at + words.len()..]))
}

/// Returns a text as YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestAttributes;
    use crate::resolve::Resolution;

    fn limit_and_key(text: &str) -> String {
        let policy = Policy::one_line(text).unwrap();
        let headers = vec![("x-api-key".to_string(), "k".to_string())];
        let request = RequestAttributes {
            headers: &headers,
            peer: Some([192, 0, 2, 1].into()),
            custom: &|name| (name == "session").then(|| b"s".to_vec()),
            host: Some("api.example.com"),
            ..RequestAttributes::new("GET", "/a/b")
        };
        let Resolution::Charged(limits) = policy.resolve(&request) else { panic!("charged") };
        format!("{} {}", limits[0].amount(), limits[0].key)
    }

    #[test]
    fn a_line_is_a_rate_and_an_identity() {
        assert_eq!(limit_and_key("100/minute per ip"), "token_bucket 100/m ip=192.0.2.1");
        assert_eq!(limit_and_key("100 per minute per ip"), "token_bucket 100/m ip=192.0.2.1");
        assert_eq!(limit_and_key("100 PER Minute Per ip"), "token_bucket 100/m ip=192.0.2.1");
        assert_eq!(limit_and_key("100 per minute"), "token_bucket 100/m *");
        for line in ["9/calendar day in UTC per ip", "9 per calendar day per ip"] {
            assert_eq!(limit_and_key(line), "fixed_window 9/calendar day ip=192.0.2.1");
        }
        assert_eq!(limit_and_key("9 per calendar day"), "fixed_window 9/calendar day *");
        let by_header = limit_and_key("5/s burst 10 per header x-api-key");
        assert_eq!(by_header, "token_bucket 5/s burst 10 caller=k");
        assert_eq!(limit_and_key("1/s per custom session"), "token_bucket 1/s session=s");
    }

    #[test]
    fn a_line_can_count_by_several_and_be_of_a_route() {
        let host = "host=api.example.com";
        assert_eq!(limit_and_key("100/s per host"), format!("token_bucket 100/s {host}"));
        let pair = limit_and_key("9/s per host and header x-api-key");
        assert_eq!(pair, format!("token_bucket 9/s {host},caller=k"));
        assert_eq!(limit_and_key("3 in flight per host"), format!("3 at a time {host}"));
        assert_eq!(limit_and_key("3 in flight"), "3 at a time *");
        assert_eq!(limit_and_key("9/s per host for GET /a/*"), format!("token_bucket 9/s {host}"));
        assert_eq!(limit_and_key("9/s for /a/{b}"), "token_bucket 9/s *");
        assert_eq!(limit_and_key("9/s For GET"), "token_bucket 9/s *");
    }

    #[test]
    fn several_lines_are_several_limits_with_names_of_their_own() {
        let lines = [
            "100/s per host",
            "1000/hour per host",
            "10 in flight per host",
            "5/s per header x-a and header x-b for POST /v1/**",
            "9/s per header x-b",
            "7/s",
        ];
        let policy = Policy::lines(lines).unwrap();
        let names: Vec<_> = policy.limits().iter().map(|limit| limit.name()).collect();
        let expected = ["host", "host-2", "host:in-flight", "x-a:x-b:POST:/v1/__", "x-b", "all"];
        assert_eq!(names, expected);
        assert_eq!(policy.identities().collect::<Vec<_>>(), ["caller", "caller-2", "ip", "host"]);
        assert!(Policy::lines([]).is_ok(), "no limit");
    }

    #[test]
    fn errors_of_a_line_say_what_to_use() {
        let error = |text| Policy::one_line(text).unwrap_err().to_string();
        assert!(error("100/fortnight per ip").contains("unknown period"));
        assert!(
            error("9/calendar day in Berlin per ip").contains("did you mean \"Europe/Berlin\"")
        );
        assert!(error("100/minute per moon").contains("use ip or host, or header"));
        assert!(error("100/minute per ip and moon").contains("cannot count by \"moon\""));
        assert!(error("5/s per host for POST v1").contains("write a route as POST /v1/chat/**"));
        assert!(error("0 in flight per host").contains("a whole number from 1"));
        assert!(error("ten in flight").contains("not a whole number"));
        assert!(error("100/minute per header a b").contains("is not a header name"));
        assert!(error("5/s per host burst 9").contains("5/s burst 9 per host"));
        for end in ["5/s per", "5/s per ", "5/s per host and", "5/s Per"] {
            assert!(error(end).contains("write what to count by: ip or host"), "{end}");
        }
        assert!(error("5/s per host for").contains("write a route as POST /v1/chat/**"));
    }

    #[test]
    fn a_route_that_no_request_has_is_a_mistake() {
        let error = |text| Policy::one_line(text).unwrap_err().to_string();
        assert!(error("5/s for GETT /v1").contains("\"GETT\" is not a method of HTTP"));
        assert!(error("5/s for example.com").contains("write a route as POST /v1/chat/**"));
        assert!(Policy::one_line("5/s for get /v1").is_ok(), "in any case");
    }
}
