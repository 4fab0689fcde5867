//! Where servers disagree about a path, every way to read it.
//!
//! [`normalize`](super::normalize) takes `/static/..%2Fcheckout` for `/checkout`. A server to which
//! `%2F` is no slash serves something below `/static` instead. So a limit counts a request if any
//! reading is its own, and only what all readings agree on is exempt: nobody gains by a path of two
//! meanings.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::normalize::{decode, normalize};

/// The readings of a raw path, the normal one first. Nearly all paths have that one only.
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

/// A slash that was escaped is none, to those who split a path before they decode it.
fn segment(raw: &str) -> Cow<'_, str> {
    match raw.contains('%') {
        true => decode(raw).replace('/', "%2F").into(),
        false => raw.into(),
    }
}

/// To those who serve what they get.
fn as_written(segments: &[Cow<'_, str>]) -> String {
    let ends_in_slash = segments.last().is_some_and(|last| last.is_empty());
    let kept = segments.len() - usize::from(ends_in_slash);
    format!("/{}", segments[..kept].join("/"))
}

/// To those who resolve dots and nothing else (RFC 3986).
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
    fn a_plain_path_has_one_reading() {
        check("/", &["/"]);
        check("/a/b", &["/a/b"]);
        check("/a/b/", &["/a/b"]);
        check("/caf%C3%A9/a%20b", &["/café/a b"]);
        check("", &["/"]);
    }

    #[test]
    fn a_path_of_several_meanings_has_them_all() {
        check("//a", &["/a", "//a"]);
        check("/a/../b", &["/b", "/a/../b"]);
        check("/a/..%2Fb", &["/b", "/a/..%2Fb"]);
        check("/a/..;/b", &["/b", "/a/..;/b"]);
        check("/a/..\\b", &["/b", "/a/..\\b"]);
        check("/x/../a/..;/b", &["/b", "/a/..;/b", "/x/../a/..;/b"]);
        check("/a;x=1", &["/a", "/a;x=1"]);
    }
}
