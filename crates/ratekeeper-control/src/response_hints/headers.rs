//! The headers of interest, picked out in one pass.

use std::cmp::Reverse;
use std::time::Duration;

use super::structured_list::{ListItem, ListItems};
use super::values::{WaitReader, integer, trim};
use super::{Pushback, QuotaHint};

/// Names of errors by which services of AWS refuse a request, usually with the status 400.
const THROTTLING_ERRORS: [&str; 10] = [
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottledException",
    "RequestThrottled",
    "TooManyRequestsException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
    "SlowDown",
];

/// The values of the headers of interest. The first value of a name counts, but for lists.
#[derive(Debug, Default)]
pub(super) struct Headers<'a> {
    /// Whether there is any but the date.
    pub(super) has_hints: bool,
    pub(super) date: Option<&'a [u8]>,
    retry_after: Option<&'a [u8]>,
    retry_after_ms: Option<&'a [u8]>,
    should_retry: Option<&'a [u8]>,
    pushback: Option<&'a [u8]>,
    grpc_status: Option<&'a [u8]>,
    error_type: Option<&'a [u8]>,
    ratelimit: ListLines<'a>,
    ratelimit_policy: ListLines<'a>,
    /// `ratelimit-limit` and the others of older drafts.
    draft: QuotaHeaders<'a>,
    /// `x-ratelimit-limit` and the others.
    common: QuotaHeaders<'a>,
    /// `x-ratelimit-limit-requests` and the others.
    requests: QuotaHeaders<'a>,
    /// `x-ratelimit-limit-tokens` and the others.
    tokens: QuotaHeaders<'a>,
    anthropic_requests: QuotaHeaders<'a>,
    anthropic_tokens: QuotaHeaders<'a>,
    anthropic_input: QuotaHeaders<'a>,
    anthropic_output: QuotaHeaders<'a>,
}

impl<'a> Headers<'a> {
    /// Returns whether a header may be of interest, by its first letters: nearly none is.
    #[inline]
    pub(super) fn is_candidate(name: &str) -> bool {
        matches!(
            name.as_bytes(),
            [b'a', b'n', ..]
                | [b'g', b'r', ..]
                | [b'r', b'a' | b'e', b't', ..]
                | [b'x', b'-', b'a', b'm', ..]
                | [b'x', b'-', b'r', b'a', ..]
                | [b'x', b'-', b's', b'h', ..]
        )
    }

    /// Keeps the value if the header is of interest.
    #[inline]
    pub(super) fn add(&mut self, name: &str, value: &'a [u8]) {
        if Self::is_candidate(name) || name == "date" {
            self.add_candidate(name, value);
        }
    }

    fn add_candidate(&mut self, name: &str, value: &'a [u8]) {
        match name {
            "date" => _ = self.date.get_or_insert(trim(value)),
            "ratelimit" => self.ratelimit.add(trim(value)),
            "ratelimit-policy" => self.ratelimit_policy.add(trim(value)),
            _ => match self.field(name) {
                Some(field) => _ = field.get_or_insert(trim(value)),
                None => return,
            },
        }
        self.has_hints |= name != "date";
    }

    fn field(&mut self, name: &str) -> Option<&mut Option<&'a [u8]>> {
        Some(match name.as_bytes()[0] {
            b'r' => match name.strip_prefix("ratelimit-") {
                Some(kind) => return self.draft.field(kind),
                None if name == "retry-after" => &mut self.retry_after,
                None if name == "retry-after-ms" => &mut self.retry_after_ms,
                None => return None,
            },
            b'x' => {
                let prefixes = ["x-ratelimit-", "x-rate-limit-"];
                match prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)) {
                    Some(rest) => return self.x_ratelimit_field(rest),
                    None if name == "x-should-retry" => &mut self.should_retry,
                    None if name == "x-amzn-errortype" => &mut self.error_type,
                    None => return None,
                }
            }
            b'g' if name == "grpc-status" => &mut self.grpc_status,
            b'g' if name == "grpc-retry-pushback-ms" => &mut self.pushback,
            b'a' => return self.anthropic_field(name.strip_prefix("anthropic-ratelimit-")?),
            _ => return None,
        })
    }

    fn x_ratelimit_field(&mut self, rest: &str) -> Option<&mut Option<&'a [u8]>> {
        match rest.split_once('-') {
            Some((kind, "requests")) => self.requests.field(kind),
            Some((kind, "tokens")) => self.tokens.field(kind),
            _ => self.common.field(rest),
        }
    }

    fn anthropic_field(&mut self, rest: &str) -> Option<&mut Option<&'a [u8]>> {
        let (scope, kind) = rest.rsplit_once('-')?;
        let quota = match scope {
            "requests" => &mut self.anthropic_requests,
            "tokens" => &mut self.anthropic_tokens,
            "input-tokens" => &mut self.anthropic_input,
            "output-tokens" => &mut self.anthropic_output,
            _ => return None,
        };
        quota.field(kind)
    }

    pub(super) fn retry_after(&self, waits: &WaitReader<'_>) -> Option<Duration> {
        let millis = self.retry_after_ms.and_then(|value| waits.millis(value));
        millis.or_else(|| waits.retry_after(self.retry_after?))
    }

    pub(super) fn should_retry(&self) -> Option<bool> {
        match self.should_retry? {
            value if value.eq_ignore_ascii_case(b"true") => Some(true),
            value if value.eq_ignore_ascii_case(b"false") => Some(false),
            _ => None,
        }
    }

    pub(super) fn pushback(&self, max_wait: Duration) -> Option<Pushback> {
        let millis = integer(self.pushback?);
        let after = millis.map(|ms| Pushback::After(Duration::from_millis(ms).min(max_wait)));
        Some(after.unwrap_or(Pushback::DoNotRetry))
    }

    pub(super) fn grpc_status(&self) -> Option<u16> {
        u16::try_from(integer(self.grpc_status?)?).ok()
    }

    /// Returns whether the name of the error says that a quota is used up. It may be followed by a colon and an address.
    pub(super) fn is_throttling_error(&self) -> bool {
        let name = self.error_type.and_then(|value| value.split(|byte| *byte == b':').next());
        name.is_some_and(|name| THROTTLING_ERRORS.iter().any(|known| known.as_bytes() == name))
    }

    /// Returns the quota of requests: that of the first family of headers that says what remains,
    /// the most exact ones first.
    pub(super) fn requests(&self, waits: &WaitReader<'_>) -> Option<QuotaHint> {
        let families = [
            self.listed(waits),
            self.draft.hint(waits),
            self.requests.hint(waits),
            self.anthropic_requests.hint(waits),
            self.common.hint(waits),
        ];
        let has_remaining = |hint: &&QuotaHint| hint.remaining.is_some();
        let mut hints = families.iter().flatten();
        hints.clone().find(has_remaining).or_else(|| hints.next()).copied()
    }

    /// Returns the quota of tokens that restricts most.
    pub(super) fn tokens(&self, waits: &WaitReader<'_>) -> Option<QuotaHint> {
        [&self.tokens, &self.anthropic_tokens, &self.anthropic_input, &self.anthropic_output]
            .into_iter()
            .filter_map(|quota| quota.hint(waits))
            .min_by_key(strictness)
    }

    /// Returns what the lists say: of the limit that restricts most, or else of a policy.
    fn listed(&self, waits: &WaitReader<'_>) -> Option<QuotaHint> {
        if self.ratelimit.len == 0 && self.ratelimit_policy.len == 0 {
            return None;
        }
        let limits = self.ratelimit.items().filter_map(|item| self.limit_hint(&item, waits));
        limits.min_by_key(strictness).or_else(|| self.dictionary_hint(waits)).or_else(|| {
            self.ratelimit_policy.items().filter(counts_requests).find_map(|policy| {
                let limit = Some(policy.quota()?);
                Some(QuotaHint { limit, window: policy.window, ..QuotaHint::default() })
            })
        })
    }

    /// Reads `"checkout";r=4;t=1`, with the policy of the same name.
    fn limit_hint(&self, item: &ListItem<'a>, waits: &WaitReader<'_>) -> Option<QuotaHint> {
        let remaining = Some(item.remaining?);
        let policy = self.ratelimit_policy.items().find(|policy| policy.name == item.name);
        let policy = policy.unwrap_or_default();
        if !(counts_requests(item) && counts_requests(&policy)) {
            return None;
        }
        Some(QuotaHint {
            limit: item.quota.or(policy.quota),
            window: item.window.or(policy.window),
            remaining,
            reset_after: item.reset.and_then(|value| waits.seconds(value)),
        })
    }

    /// Reads `limit=100, remaining=50, reset=5`, with the policy of the same quota.
    fn dictionary_hint(&self, waits: &WaitReader<'_>) -> Option<QuotaHint> {
        let member = |name: &[u8]| self.ratelimit.items().find(|item| item.name == name)?.value;
        let limit = member(b"limit").and_then(integer);
        let has_limit = |policy: &ListItem<'_>| limit.is_some() && policy.quota() == limit;
        let hint = QuotaHint {
            limit,
            window: self.ratelimit_policy.items().find(has_limit).and_then(|policy| policy.window),
            remaining: member(b"remaining").and_then(integer),
            reset_after: member(b"reset").and_then(|value| waits.seconds(value)),
        };
        (hint != QuotaHint::default()).then_some(hint)
    }
}

/// Returns whether a limit counts requests, which is so unless it says otherwise.
fn counts_requests(item: &ListItem<'_>) -> bool {
    matches!(item.unit, None | Some(b"requests" | b"request"))
}

/// Returns a sort key by which the quota that restricts most is the least.
fn strictness(hint: &QuotaHint) -> (u64, Reverse<Option<Duration>>) {
    (hint.remaining.unwrap_or(u64::MAX), Reverse(hint.reset_after))
}

/// The headers about one quota.
#[derive(Debug, Default)]
struct QuotaHeaders<'a> {
    limit: Option<&'a [u8]>,
    remaining: Option<&'a [u8]>,
    reset: Option<&'a [u8]>,
    reset_after: Option<&'a [u8]>,
}

impl<'a> QuotaHeaders<'a> {
    fn field(&mut self, kind: &str) -> Option<&mut Option<&'a [u8]>> {
        match kind {
            "limit" => Some(&mut self.limit),
            "remaining" => Some(&mut self.remaining),
            "reset" => Some(&mut self.reset),
            "reset-after" => Some(&mut self.reset_after),
            _ => None,
        }
    }

    /// Returns what they say; `None` if nothing of it can be read.
    fn hint(&self, waits: &WaitReader<'_>) -> Option<QuotaHint> {
        // A limit may be followed by its policies: `100, 100;w=60`.
        let policies = |value: &'a [u8]| ListItems::of(value).take(ITEMS_MAX);
        let first = |value: &'a [u8]| policies(value).next().and_then(|item| integer(item.name));
        let limit = self.limit.and_then(first);
        let window = self.limit.and_then(|value| {
            policies(value).find(|item| item.quota() == limit && item.window.is_some())?.window
        });
        let reset_after = self.reset_after.and_then(|value| waits.seconds(value));
        let hint = QuotaHint {
            limit,
            window,
            remaining: self.remaining.and_then(first),
            reset_after: reset_after.or_else(|| waits.reset(self.reset?)),
        };
        (hint != QuotaHint::default()).then_some(hint)
    }
}

/// The most lines of one list header that are read.
const LINES_MAX: usize = 4;

/// The most items of one list header that are read: items are paired by name, which takes the
/// square of them.
const ITEMS_MAX: usize = 16;

/// The lines of a header that may come several times.
#[derive(Debug, Default)]
struct ListLines<'a> {
    lines: [&'a [u8]; LINES_MAX],
    len: usize,
}

impl<'a> ListLines<'a> {
    fn add(&mut self, line: &'a [u8]) {
        if let Some(free) = self.lines.get_mut(self.len) {
            *free = line;
            self.len += 1;
        }
    }

    fn items(&self) -> impl Iterator<Item = ListItem<'a>> {
        let lines = self.lines.iter().take(self.len);
        lines.flat_map(|line| ListItems::of(line)).take(ITEMS_MAX)
    }
}
