//! All interpretations of an ambiguous path.
//!
//! [`normalize`](super::normalize) turns `/static/..%2Fcheckout` into `/checkout`. A server that does not
//! decode `%2F` to a slash serves something below `/static` instead. So a limit counts a request if any
//! interpretation matches, and a request is exempt only if all match: an ambiguous path never evades a
//! limit.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::normalize::{decode, normalize};

/// Returns the interpretations of a raw path, the normalized one first. Nearly all paths have only that.
pub(crate) fn readings(path: &str) -> SmallVec<[Cow<'_, str>; 1]> {
    let normal = normalize(path);
    let is_plain = normal == path;
    let mut readings: SmallVec<[Cow<'_, str>; 1]> = SmallVec::from_iter([normal]);
    if is_plain {
        return readings;
    }
    let written: Vec<Cow<'_, str>> =
        path.strip_prefix('/').unwrap_or(path).split('/').map(segment).collect();
    for reading in [resolved(&written), as_written(&written)] {
        if readings.iter().all(|known| *known != reading) {
            readings.push(reading.into());
        }
    }
    readings
}

/// Decodes a segment for servers that split a path before they decode it: an escaped slash stays escaped.
fn segment(raw: &str) -> Cow<'_, str> {
    match raw.contains('%') {
        true => decode(raw).replace('/', "%2F").into(),
        false => raw.into(),
    }
}

/// Returns the path as servers read it that do not normalize.
fn as_written(segments: &[Cow<'_, str>]) -> String {
    let ends_in_slash = segments.last().is_some_and(|last| last.is_empty());
    let kept = segments.len() - usize::from(ends_in_slash);
    format!("/{}", segments[..kept].join("/"))
}

/// Returns the path as servers read it that only resolve dot segments (RFC 3986).
fn resolved(segments: &[Cow<'_, str>]) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in segments {
        match segment.as_ref() {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: &[&str]) {
        assert_eq!(readings(path).as_slice(), expected, "{path}");
    }

    #[test]
    fn an_unambiguous_path_has_one_interpretation() {
        check("/", &["/"]);
        check("/a/b", &["/a/b"]);
        check("/a/b/", &["/a/b"]);
        check("/caf%C3%A9/a%20b", &["/café/a b"]);
        check("", &["/"]);
    }

    #[test]
    fn an_ambiguous_path_has_several_interpretations() {
        check("//a", &["/a", "//a"]);
        check("/a/../b", &["/b", "/a/../b"]);
        check("/a/..%2Fb", &["/b", "/a/..%2Fb"]);
        check("/a/..;/b", &["/b", "/a/..;/b"]);
        check("/a/..\\b", &["/b", "/a/..\\b"]);
        check("/x/../a/..;/b", &["/b", "/a/..;/b", "/x/../a/..;/b"]);
        check("/a;x=1", &["/a", "/a;x=1"]);
    }
}
