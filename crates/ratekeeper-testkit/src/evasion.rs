//! Requests with different spellings and the same meaning, for tests of every listener.
//!
//! A limit that counts one spelling and not the other can be evaded. [`same`] lists spellings that have to
//! count as one, [`malformed`] requests that every listener must reject. A new attribute or evasion is one line
//! here, and is tested wherever requests are read.

/// A request, as a client writes it.
#[derive(Clone, Debug)]
pub struct Spelling {
    /// The method.
    pub method: &'static str,
    /// The path and the query.
    pub target: &'static str,
    /// The host.
    pub host: &'static str,
    /// Other headers, in order.
    pub headers: Vec<(&'static str, &'static str)>,
}

impl Spelling {
    /// Returns all values of a header.
    pub fn header(&self, name: &str) -> Vec<&'static str> {
        let named = self.headers.iter().filter(|(known, _)| *known == name);
        named.map(|(_, value)| *value).collect()
    }
}

/// The policy of all listeners. Each limit is for requests with its name in the header `x-case`.
pub const POLICY: &str = r#"
version: 1
identify:
  key: { header: x-api-key }
  credentials: { header: authorization }
  session: { cookie: sid }
  user: { query: user }
limits:
  - { name: header, per: key, match: { header: { x-case: header } }, rate: 100/year burst 100 }
  - { name: header-match, match: { header: { x-case: header-match, x-plan: free } }, rate: 100/year burst 100 }
  - { name: bearer, per: credentials, match: { header: { x-case: bearer, authorization: "Bearer *" } }, rate: 100/year burst 100 }
  - { name: basic, per: credentials, match: { header: { x-case: basic } }, rate: 100/year burst 100 }
  - { name: cookie, per: session, match: { header: { x-case: cookie } }, rate: 100/year burst 100 }
  - { name: query, per: user, match: { header: { x-case: query } }, rate: 100/year burst 100 }
  - { name: query-match, match: { header: { x-case: query-match }, query: { debug: "on" } }, rate: 100/year burst 100 }
  - { name: ambiguous, per: user, match: { header: { x-case: ambiguous } }, rate: 100/year burst 100 }
  - { name: host, match: { header: { x-case: host }, host: api.example.com }, rate: 100/year burst 100 }
  - { name: idn, match: { header: { x-case: idn }, host: bücher.example }, rate: 100/year burst 100 }
  - { name: path, match: { header: { x-case: path }, path: /checkout }, rate: 100/year burst 100 }
  - { name: method, match: { header: { x-case: method }, method: POST }, rate: 100/year burst 100 }
"#;

const HOST: &str = "test.example";

/// Returns spellings that count as one request, by the name of their limit.
pub fn same() -> Vec<(&'static str, Vec<Spelling>)> {
    vec![
        of_header(
            "header",
            "x-api-key",
            &["k", " k", "k ", "\tk", "k\t", " \t k \t ", "k,", " , k"],
        ),
        ("header", vec![with("header", &[("x-api-key", "k"), ("x-api-key", " k\t")])]),
        of_header("header-match", "x-plan", &["free", " free", "free\t", "\t free "]),
        ("header-match", vec![with("header-match", &[("x-plan", "paid"), ("x-plan", " free")])]),
        of_header("bearer", "authorization", &["Bearer T", "bearer T", "BEARER  T", " Bearer\tT "]),
        of_header("basic", "authorization", &["Basic dTpw", "basic  dTpw ", "BASIC d!Tp w"]),
        of_header(
            "cookie",
            "cookie",
            &[
                "sid=zed",
                "sid=\"zed\"",
                "sid=%7aed",
                "sid=%7Aed; a=b",
                " a=b;sid=\"%7aed\"",
                "sid = zed",
                "a=b;\tsid\t=\tzed ; c=d",
                "sid=\"\\172ed\"",
                "sid=zed; sid=\"zed\"",
                "SID=other; sid=zed",
            ],
        ),
        (
            "cookie",
            vec![with("cookie", &[("cookie", "a=b"), ("cookie", " sid=zed "), ("cookie", "c=d")])],
        ),
        of_target(
            "query",
            &[
                "/?user=bob",
                "/?us%65r=b%6Fb",
                "/?x=1&user=bob&&",
                "/?user=bob&user=b%6fb",
                "/?x=1;y=2&user=bob",
            ],
        ),
        of_target(
            "query-match",
            &[
                "/?debug=on",
                "/?a=1;debug=on",
                "/?debug=on;x",
                "/?d%65bug=o%6e",
                "/?debug=off&debug=on",
            ],
        ),
        of_target(
            "ambiguous",
            &["/?user=a&user=b", "/?user=a;x=1", "/?x=1;user=a", "/?user=c;user=d"],
        ),
        of_host(
            "host",
            &[
                "api.example.com",
                "API.example.com",
                "api.example.com.",
                "api.Example.com:443",
                "api.example.com.:1",
            ],
        ),
        of_host("idn", &["xn--bcher-kva.example", "XN--BCHER-KVA.example:80"]),
        of_target(
            "path",
            &[
                "/checkout",
                "//checkout",
                "/checkout/",
                "/%63heckout",
                "/a/../checkout",
                "/checkout;x=1?y",
            ],
        ),
        (
            "method",
            ["POST", "post", "Post"]
                .map(|method| Spelling { method, ..with("method", &[]) })
                .into(),
        ),
    ]
}

/// Returns requests that have to be rejected: upstreams disagree about their host.
pub fn malformed() -> Vec<Spelling> {
    let hosts = [
        "api.example.com:80:80",
        "api.example.com::",
        "api.example.com:a:b",
        "api.example.com:a",
        "::",
        ":a:b",
        "api.example.com..",
        "api..example.com",
        "api.example.com, b",
        "u@api.example.com",
        "api.example.com%2e",
        "b\u{fc}cher.example",
        "[::1",
        "[::1]x",
    ];
    of_host("host", &hosts).1
}

fn with(limit: &'static str, headers: &[(&'static str, &'static str)]) -> Spelling {
    let headers = [&[("x-case", limit)], headers].concat();
    Spelling { method: "GET", target: "/", host: HOST, headers }
}

fn of_header(
    limit: &'static str,
    name: &'static str,
    values: &[&'static str],
) -> (&'static str, Vec<Spelling>) {
    (limit, values.iter().map(|value| with(limit, &[(name, value)])).collect())
}

fn of_target(limit: &'static str, targets: &[&'static str]) -> (&'static str, Vec<Spelling>) {
    let spelling = |target: &&'static str| Spelling { target, ..with(limit, &[]) };
    (limit, targets.iter().map(spelling).collect())
}

fn of_host(limit: &'static str, hosts: &[&'static str]) -> (&'static str, Vec<Spelling>) {
    let spelling = |host: &&'static str| Spelling { host, ..with(limit, &[]) };
    (limit, hosts.iter().map(spelling).collect())
}

/// Sends every spelling, and checks that each is counted as one more of the same. `send` returns the header
/// `RateLimit` of the response, or `None` if the request cannot be written so here.
///
/// # Panics
///
/// If a spelling evades the count of the others.
pub fn count_as_one(mut send: impl FnMut(&Spelling) -> Option<String>) {
    let mut counts = std::collections::HashMap::new();
    let mut sent = 0;
    for (limit, spellings) in same() {
        for spelling in spellings {
            let Some(header) = send(&spelling) else { continue };
            let count: &mut u32 = counts.entry(limit).or_default();
            *count += 1;
            let expected = format!("\"{limit}\";r={};", 100 - *count);
            assert!(
                header.starts_with(&expected),
                "{spelling:?} is not counted by {limit}: {header:?}"
            );
            sent += 1;
        }
    }
    assert!(sent > 40, "most spellings can be written everywhere: {sent}");
}
