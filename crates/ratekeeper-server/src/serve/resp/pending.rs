//! Replies that wait for a shared store, in the order of their commands.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::future::{BoxFuture, Either, FutureExt};
use futures_util::stream::FuturesOrdered;
use ratekeeper::Micros;

use super::RespServer;
use super::codec::{ReplyWriter, RespVersion};
use super::connection::OUTPUT_MAX;
use super::hold_command::HoldCommand;
use super::rate_command::{RateCommand, Running};
use crate::serve::request_metrics::Tally;

/// The most commands of one connection that are in flight.
const IN_FLIGHT_MAX: usize = 128;

/// A reply, and how many of its bytes were known when it was queued.
type PendingReply = Either<BoxFuture<'static, (usize, Vec<u8>)>, Ready<(usize, Vec<u8>)>>;

/// Replies that wait for the store, or for a reply before them.
#[derive(Default)]
pub(super) struct PendingReplies {
    replies: FuturesOrdered<PendingReply>,
    /// The bytes of replies that wait only for those before them.
    held_bytes: usize,
}

impl PendingReplies {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.replies.len() >= IN_FLIGHT_MAX || self.held_bytes >= OUTPUT_MAX
    }

    /// Queues a reply that is known, and empties the buffer.
    #[inline]
    pub(super) fn push_ready(&mut self, reply: &mut Vec<u8>) {
        if !reply.is_empty() {
            self.held_bytes += reply.len();
            let reply = std::mem::take(reply);
            self.replies.push_back(Either::Right(ready((reply.len(), reply))));
        }
    }

    /// Queues the reply to a command that is in flight.
    pub(super) fn push(
        &mut self,
        server: &Arc<RespServer>,
        command: &RateCommand<'_>,
        running: Running,
        protocol: RespVersion,
        began: Micros,
    ) {
        let RateCommand { action, limit, key, format, .. } = *command;
        let (server, limit) = (Arc::clone(server), Arc::clone(limit));
        let key = Box::<[u8]>::from(key);
        let reply = async move {
            let finished = running.finish().await;
            let mut bytes = Vec::new();
            let outcome =
                finished.write(action, format, &mut ReplyWriter::new(&mut bytes, protocol));
            let now = server.limiter.engine().now();
            server.count_key(&limit, &key, outcome, now);
            server.metrics.record(&Tally::one(outcome), now.since(began));
            server.trace(&limit, outcome, finished.is_degraded(), began);
            (0, bytes)
        };
        self.replies.push_back(Either::Left(reply.boxed()));
    }

    /// Queues the reply to a command about a reservation or a permit.
    pub(super) fn push_hold(
        &mut self,
        server: &Arc<RespServer>,
        command: HoldCommand,
        protocol: RespVersion,
        began: Micros,
    ) {
        let server = Arc::clone(server);
        let reply = async move {
            let mut bytes = Vec::new();
            let outcome = command.run(&server, &mut ReplyWriter::new(&mut bytes, protocol)).await;
            let now = server.limiter.engine().now();
            server.metrics.record(&Tally::one(outcome), now.since(began));
            (0, bytes)
        };
        self.replies.push_back(Either::Left(reply.boxed()));
    }
}

impl Stream for PendingReplies {
    type Item = Vec<u8>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let next = Pin::new(&mut self.replies).poll_next(context);
        next.map(|reply| {
            let (held, bytes) = reply?;
            self.held_bytes -= held;
            Some(bytes)
        })
    }
}
