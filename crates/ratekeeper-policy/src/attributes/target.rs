//! Request targets.

/// A parsed request target (origin form or absolute form).
///
/// ```
/// use ratekeeper_policy::attributes::Target;
///
/// let target = Target::parse("http://shop.example/checkout?a=b#c");
/// assert_eq!(target.authority, Some("shop.example"));
/// assert_eq!((target.path, target.query), ("/checkout", Some("a=b")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The authority of a target in absolute form.
    pub authority: Option<&'a str>,
    /// The path as received.
    pub path: &'a str,
    /// The query, without the question mark.
    pub query: Option<&'a str>,
}

impl<'a> Target<'a> {
    /// Parses a target. A fragment is not part of a request target and is removed.
    #[must_use]
    pub fn parse(target: &'a str) -> Self {
        let target = target.split_once('#').map_or(target, |(target, _)| target);
        let (authority, rest) = match absolute(target) {
            Some(rest) => {
                let end = rest.find(['/', '?']).unwrap_or(rest.len());
                (Some(&rest[..end]), &rest[end..])
            }
            None => (None, target),
        };
        let (path, query) =
            rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let path = if path.is_empty() && authority.is_some() { "/" } else { path };
        Self { authority, path, query }
    }
}

/// Returns what follows `http://` or `https://`.
fn absolute(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    let is_http = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    is_http.then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_split_into_authority_path_and_query() {
        let parsed = |target| {
            let Target { authority, path, query } = Target::parse(target);
            (authority, path, query)
        };
        assert_eq!(parsed("/a?b?c#d?e"), (None, "/a", Some("b?c")));
        assert_eq!(parsed("/a#?b"), (None, "/a", None));
        assert_eq!(parsed("/a?x=http://b/c"), (None, "/a", Some("x=http://b/c")));
        assert_eq!(parsed("HTTP://a"), (Some("a"), "/", None));
        assert_eq!(parsed("https://a:1?b"), (Some("a:1"), "/", Some("b")));
        assert_eq!(parsed("*"), (None, "*", None));
        assert_eq!(parsed(""), (None, "", None));
    }
}
