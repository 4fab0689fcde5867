//! Random policies and requests.

use proptest::prelude::*;

use super::{Lines, TestRequest};

/// Few words of each kind, so that limits and requests meet.
const METHODS: &[&str] = &["GET", "POST", "PUT", "get"];
const PATHS: &[&str] = &["/", "/a", "/a/b", "/a/*", "/{x}/b", "/a/**", "/**", "/a*", "/*b/c", "/c"];
const HOSTS: &[&str] = &["x.test", "Y.test", "*.test", "x.*", "z.test."];
const HEADERS: &[&str] = &["h", "X-H"];
const VALUES: &[&str] = &["u", "v", "u*", "true", "'true'", "false"];
const NETWORKS: &[&str] = &["192.0.2.0/24", "192.0.2.1", "2001:db8::/32"];

fn some(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    let quoted = |word: &str| match word {
        "true" | "false" | "'true'" => word.to_string(),
        word => format!("'{word}'"),
    };
    prop::collection::vec(prop::sample::select(words), 1..4).prop_map(move |words| {
        let mut words: Vec<_> = words.into_iter().map(quoted).collect();
        if words.len() == 1 { words.remove(0) } else { format!("[{}]", words.join(", ")) }
    })
}

/// A match, as a policy has it.
pub(crate) fn condition(may_exclude: bool) -> BoxedStrategy<String> {
    let fields = (
        prop::option::weighted(0.4, some(METHODS)),
        prop::option::weighted(0.6, some(PATHS)),
        prop::option::weighted(0.3, some(HOSTS)),
        prop::option::weighted(0.3, (prop::sample::select(HEADERS), some(VALUES))),
        prop::option::weighted(0.2, some(VALUES)),
        prop::option::weighted(0.2, some(NETWORKS)),
        match may_exclude {
            true => prop::option::weighted(0.3, condition(false)).boxed(),
            false => Just(None).boxed(),
        },
    );
    let written = fields.prop_map(|(method, path, host, header, query, ip, not)| {
        let field = |name: &str, value: Option<String>| value.map(|v| format!("{name}: {v}"));
        let header = header.map(|(name, value)| format!("{{ {name}: {value} }}"));
        let query = query.map(|value| format!("{{ q: {value} }}"));
        let fields = [
            field("method", method),
            field("path", path),
            field("host", host),
            field("header", header),
            field("query", query),
            field("ip", ip),
            field("not", not),
        ];
        let fields: Vec<_> = fields.into_iter().flatten().collect();
        match fields.is_empty() {
            true => "{ method: GET }".to_string(),
            false => format!("{{ {} }}", fields.join(", ")),
        }
    });
    written.boxed()
}

/// Limits alone and in groups.
pub(crate) fn limits() -> impl Strategy<Value = String> {
    let mode = prop::sample::select(vec!["enforce", "enforce", "shadow", "off"]);
    let limit = (prop::option::weighted(0.8, condition(true)), mode).prop_map(|(on, mode)| {
        let on = on.map(|on| format!(", match: {on}")).unwrap_or_default();
        format!("name: NAME, rate: 1/s, mode: {mode}{on}")
    });
    let group = (
        prop::option::of(condition(true)),
        prop::sample::select(vec!["first", "all"]),
        prop::collection::vec(limit.clone(), 1..4),
    );
    let group = group.prop_map(|(on, kind, limits)| {
        let on = on.map(|on| format!("match: {on}, ")).unwrap_or_default();
        let limits: Vec<_> = limits.iter().map(|limit| format!("{{ {limit} }}")).collect();
        format!("{on}{kind}: [ {} ]", limits.join(", "))
    });
    let entry = prop_oneof![3 => limit.boxed(), 1 => group.boxed()];
    prop::collection::vec(entry, 0..40).prop_map(|entries| {
        let mut number = 0;
        let mut text = "limits:\n".to_string();
        for entry in &entries {
            let mut parts = entry.split("NAME");
            text += &format!("  - {{ {}", parts.next().unwrap());
            for part in parts {
                number += 1;
                text += &format!("l{number}{part}");
            }
            text += " }\n";
        }
        if entries.is_empty() { "limits: []".into() } else { text }
    })
}

pub(crate) fn requests() -> impl Strategy<Value = TestRequest> {
    let path = prop::sample::select(vec![
        "/",
        "/a",
        "/a/b",
        "/a/c",
        "/b",
        "/x/b",
        "/ab",
        "/xb/c",
        "/c",
        "/a//b",
        "/a/../c",
        "/a/..%2fc",
        "/a;x",
        "/%61",
        "/a/..;/c",
        "//a",
        "\\a",
        "/a/b/c/d",
    ]);
    let host = prop::option::of(prop::sample::select(vec![
        "x.test",
        "X.TEST:80",
        "y.test.",
        "z.test",
        "x.y",
        "x.test:80:80",
    ]));
    let header = (
        prop::sample::select(vec!["h", "x-h", "H"]),
        prop::sample::select(vec!["u", " v\t", "uu", "true", ""]),
    );
    let query = prop::option::of(prop::sample::select(vec![
        "q=u", "q=v&q=uu", "p=u", "q=true", "q", "q=false", "p=1;q=u", "q=v;x",
    ]));
    let peer = prop::option::of(prop::sample::select(vec![
        "192.0.2.1",
        "192.0.2.7",
        "2001:db8::1",
        "8.8.8.8",
    ]));
    let headers = prop::collection::vec(header, 0..3);
    (prop::sample::select(METHODS), path, host, headers, query, peer).prop_map(
        |(method, path, host, headers, query, peer)| TestRequest {
            method: method.into(),
            path: path.into(),
            query: query.map(Into::into),
            host: host.map(Into::into),
            peer: peer.map(|peer| peer.parse().unwrap()),
            headers: Lines(
                headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            ),
            unix_secs: 0,
        },
    )
}
