//! Policies written in one line, such as `100/minute per ip`.

use crate::policy::{NoSources, Policy};
use crate::problems::PolicyErrors;

const PER: &str = " per ";
const KINDS: [&str; 4] = ["header", "cookie", "query", "custom"];

impl Policy {
    /// Parses a policy with one limit: a rate, and optionally `per` and what to count by: `ip`, or
    /// `header`, `cookie`, `query` or `custom` and a name. Without `per`, all requests share one count.
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
        // Words are read without regard to case.
        let last = text.to_ascii_lowercase().rfind(PER);
        let (rate, per) = match last.map(|at| (&text[..at], &text[at + PER.len()..])) {
            Some((rate, per)) if rate.parse::<ratekeeper_core::Rate>().is_ok() => {
                (rate, per.trim())
            }
            // The last `per` may belong to the rate: `100 per minute`.
            _ => (text, "everybody"),
        };
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let limit = format!("name: default, rate: {}", quoted(rate.trim()));
        let lines = match per.split_once(' ') {
            _ if per == "everybody" => format!("limits: [{{ {limit} }}]"),
            _ if per == "ip" => format!("limits: [{{ {limit}, per: ip }}]"),
            Some((kind, name)) if KINDS.contains(&kind) => {
                let (identity, value) = match kind {
                    "custom" => (name.trim(), "true".to_string()),
                    _ => ("caller", quoted(name.trim())),
                };
                let identity = quoted(identity);
                format!(
                    "identify: {{ {identity}: {{ {kind}: {value} }} }}\nlimits: [{{ {limit}, per: {identity} }}]"
                )
            }
            _ => {
                let why = format!(
                    "cannot count by \"{per}\"; use ip, or header, cookie, query or custom and a name"
                );
                return Err(PolicyErrors::plain(text, &why));
            }
        };
        let parsed = Self::parse(text, &format!("version: 1\n{lines}\n"), &NoSources);
        // The positions are those of the generated text, so only the messages are kept.
        parsed.map_err(|errors| {
            let messages: Vec<_> = errors.problems().iter().map(|p| p.message()).collect();
            PolicyErrors::plain(text, &messages.join("; "))
        })
    }
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
            ..RequestAttributes::new("GET", "/")
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
    fn errors_of_a_line_say_what_to_use() {
        let error = |text| Policy::one_line(text).unwrap_err().to_string();
        assert!(error("100/fortnight per ip").contains("unknown period"));
        assert!(
            error("9/calendar day in Berlin per ip").contains("did you mean \"Europe/Berlin\"")
        );
        assert!(error("100/minute per moon").contains("use ip, or header"));
        assert!(error("100/minute per header a b").contains("is not a header name"));
    }
}
