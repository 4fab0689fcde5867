//! What happens in the service.

use super::load::Clients;

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A worker finishes the work for a request.
    Done { request: usize },
    /// A stream ends.
    StreamEnd,
    /// A client repeats a request.
    Retry(Attempt),
}

/// One attempt of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// 0 for the first attempt.
    pub(super) retry: u32,
}

impl Attempt {
    pub(super) fn may_retry(self, clients: Clients) -> bool {
        match clients {
            Clients::OneShot => false,
            Clients::Naive { retries } => self.retry < retries,
            Clients::Budgeted => self.retry < 2,
        }
    }
}
