//! The metrics of the rate limit service.

use std::sync::atomic::{AtomicU64, Ordering};

use super::RateLimitService;
use crate::metrics::{Labels, Page, one};
use crate::reload::LoadStatus;

/// Counts responses.
#[derive(Default)]
pub(super) struct ResponseCounters {
    pub(super) ok: AtomicU64,
    pub(super) over_limit: AtomicU64,
    pub(super) shadow_over_limit: AtomicU64,
    pub(super) invalid: AtomicU64,
}

/// The number of responses so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimitStats {
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    /// Over a limit in shadow mode.
    pub(crate) shadow_over_limit: u64,
    pub(crate) invalid: u64,
}

impl RateLimitService {
    pub(crate) fn stats(&self) -> RateLimitStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ResponseCounters { ok, over_limit, shadow_over_limit, invalid } = &self.counters;
        RateLimitStats {
            ok: read(ok),
            over_limit: read(over_limit),
            shadow_over_limit: read(shadow_over_limit),
            invalid: read(invalid),
        }
    }

    /// Writes the metrics of the service.
    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let RateLimitStats { ok, over_limit, shadow_over_limit, invalid } = self.stats();
        let requests = |code, count| (Labels(vec![("code", code)]), count);
        page.counter(
            "ratekeeper_envoy_requests_total",
            "Requests of Envoy, by the code of the response.",
            [requests("ok", ok), requests("over_limit", over_limit), requests("invalid", invalid)],
        );
        page.counter(
            "ratekeeper_envoy_shadow_over_limit_total",
            "Requests that a limit in shadow mode would have denied.",
            [(Labels::default(), shadow_over_limit)],
        );
        self.limit_metrics.load().write(page);
        let limits = self.config.load().limits().len();
        page.gauge("ratekeeper_envoy_limits", "Active limits of descriptors.", one(limits));
        if self.folder.is_some() {
            self.write_load_metrics(page);
        }
    }

    fn write_load_metrics(&self, page: &mut Page) {
        let LoadStatus { loaded_at, failures, last_error, failed_at, .. } = self.loads.status();
        let help = "Whether the last load of the files succeeded.";
        page.gauge("ratekeeper_envoy_config_ok", help, one(u8::from(last_error.is_none())));
        let help = "When the active limits were loaded.";
        let at = loaded_at.get() / 1_000_000;
        page.gauge("ratekeeper_envoy_config_loaded_timestamp_seconds", help, one(at));
        let help = "When the last load failed; 0 if it succeeded.";
        let failed_at = failed_at.map_or(0, |at| at.get() / 1_000_000);
        page.gauge("ratekeeper_envoy_config_failed_timestamp_seconds", help, one(failed_at));
        let help = "Loads of the files that failed.";
        page.counter("ratekeeper_envoy_config_failures_total", help, one(failures));
    }
}
