//! The upstreams: their addresses, round-robin, and passive ejection.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;

/// As many as fit the set of those that were tried for a request.
pub(super) const UPSTREAMS_MAX: usize = 64;

const EJECTION_MAX: Duration = Duration::from_secs(300);

/// What `--upstream` names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UpstreamAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_tls: bool,
}

impl FromStr for UpstreamAddress {
    type Err = UpstreamAddressError;

    fn from_str(text: &str) -> Result<Self, UpstreamAddressError> {
        let uri: Uri = text.parse().map_err(UpstreamAddressError::Url)?;
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(UpstreamAddressError::Scheme),
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err(UpstreamAddressError::Path);
        }
        if text.contains('@') {
            return Err(UpstreamAddressError::User);
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(UpstreamAddressError::Host)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Self { host, port, is_tls })
    }
}

/// Why a text is not the address of an upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamAddressError {
    #[error("not a URL; use http://HOST:PORT or https://HOST:PORT")]
    Url(#[source] http::uri::InvalidUri),
    #[error(
        "it does not begin with http:// or https://; use http://HOST:PORT or https://HOST:PORT"
    )]
    Scheme,
    #[error(
        "it has a path, but the path of a request is forwarded unchanged; use http://HOST:PORT or \
         https://HOST:PORT"
    )]
    Path,
    #[error("it has a user, which is not supported; use http://HOST:PORT or https://HOST:PORT")]
    User,
    #[error("it has no host; use http://HOST:PORT or https://HOST:PORT")]
    Host,
}

impl Display for UpstreamAddress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// When and for how long an upstream gets no requests (`--eject-after`, `--eject-for`).
#[derive(Clone, Copy)]
pub(super) struct EjectionRule {
    pub(super) after: u32,
    pub(super) lasting: Duration,
    /// Whether nothing is ejected.
    pub(super) is_off: bool,
}

/// Whether an upstream gets requests, shared by all workers. Times are microseconds on any one clock.
#[derive(Default)]
pub(super) struct UpstreamHealth {
    failures: AtomicU32,
    /// In a row, without a success between.
    ejections: AtomicU32,
    /// 0 unless it was ejected and has not had a success since.
    ejected_until_us: AtomicU64,
    /// The result of the last health checks.
    is_unhealthy: AtomicBool,
}

impl UpstreamHealth {
    /// Whether it gets requests. Reads the clock only if the result depends on it.
    pub(super) fn is_available(&self, now_us: impl FnOnce() -> u64) -> bool {
        let until = self.ejected_until_us.load(Ordering::Relaxed);
        !self.is_unhealthy.load(Ordering::Relaxed) && (until == 0 || now_us() >= until)
    }

    pub(super) fn succeed(&self) {
        if self.is_failing() {
            self.failures.store(0, Ordering::Relaxed);
            self.ejections.store(0, Ordering::Relaxed);
            self.ejected_until_us.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the last request failed, as far as is known.
    pub(super) fn is_failing(&self) -> bool {
        self.failures.load(Ordering::Relaxed) != 0
    }

    /// Returns for how long the upstream is ejected, if that begins now.
    pub(super) fn fail(&self, rule: EjectionRule, now_us: u64) -> Option<Duration> {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if rule.is_off
            || failures < rule.after
            || now_us < self.ejected_until_us.load(Ordering::Relaxed)
        {
            return None;
        }
        let times = self.ejections.fetch_add(1, Ordering::Relaxed).min(20);
        let lasting = rule.lasting.saturating_mul(1 << times).min(EJECTION_MAX.max(rule.lasting));
        let until_us = now_us + lasting.as_micros() as u64;
        self.ejected_until_us.store(until_us, Ordering::Relaxed);
        Some(lasting)
    }

    /// Returns whether that is a change.
    pub(super) fn set_unhealthy(&self, is_unhealthy: bool) -> bool {
        self.is_unhealthy.swap(is_unhealthy, Ordering::Relaxed) != is_unhealthy
    }
}

/// The upstreams that were tried for one request.
#[derive(Clone, Copy, Default)]
pub(super) struct Tried(u64);

impl Tried {
    pub(super) fn add(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }
}

/// Picks the next upstream from `start` on: an available one, or any if none is; `None` when all were tried.
pub(super) fn pick(
    count: usize,
    start: usize,
    tried: Tried,
    is_available: impl Fn(usize) -> bool,
) -> Option<usize> {
    let in_order = (0..count).cycle().skip(start % count).take(count);
    let mut untried = in_order.filter(|index| !tried.contains(*index));
    untried.clone().find(|index| is_available(*index)).or_else(|| untried.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: EjectionRule =
        EjectionRule { after: 2, lasting: Duration::from_secs(1), is_off: false };
    const SECOND: u64 = 1_000_000;

    #[test]
    fn an_upstream_is_a_host_and_a_port() {
        let read = |text: &str| text.parse::<UpstreamAddress>().map(|address| address.to_string());
        assert_eq!(read("http://a:9").unwrap(), "a:9");
        assert_eq!(read("https://a").unwrap(), "a:443");
        assert_eq!(read("http://[::1]:9/").unwrap(), "[::1]:9");
        for wrong in ["a:9", "ftp://a", "http://", "http://a/b", "http://a/?x", "http://u@a"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_ejection_begins_after_failures_in_a_row_and_doubles_until_a_success() {
        let health = UpstreamHealth::default();
        assert_eq!(health.fail(RULE, 0), None);
        health.succeed();
        assert_eq!(health.fail(RULE, 0), None);
        assert_eq!(health.fail(RULE, 0), Some(Duration::from_secs(1)));
        assert!(!health.is_available(|| SECOND - 1) && health.is_available(|| SECOND));
        assert_eq!(health.fail(RULE, SECOND), Some(Duration::from_secs(2)));
        assert!(!health.is_available(|| 3 * SECOND - 1) && health.is_available(|| 3 * SECOND));
        health.succeed();
        assert_eq!(health.fail(RULE, 4 * SECOND), None);
    }

    #[test]
    fn upstreams_are_picked_in_order_and_unavailable_ones_only_when_none_is_available() {
        let all = [UpstreamHealth::default(), UpstreamHealth::default(), UpstreamHealth::default()];
        let next =
            |start, tried| pick(all.len(), start, tried, |index| all[index].is_available(|| 0));
        assert_eq!((next(0, Tried::default()), next(4, Tried::default())), (Some(0), Some(1)));
        all[1].set_unhealthy(true);
        assert_eq!(next(1, Tried::default()), Some(2));
        all[0].set_unhealthy(true);
        all[2].set_unhealthy(true);
        assert_eq!(next(1, Tried::default()), Some(1));
        let mut tried = Tried::default();
        (0..3).for_each(|index| tried.add(index));
        assert_eq!(next(1, tried), None);
    }
}
