//! Replies that wait for a shared store, in the order of their commands.

use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::future::{BoxFuture, Either};
use futures_util::stream::FuturesOrdered;

use super::connection::OUTPUT_MAX;
use super::in_flight::InFlight;

/// The most commands of one connection that are in flight.
pub(super) const IN_FLIGHT_MAX: usize = 128;

type PendingReply = Either<BoxFuture<'static, Vec<u8>>, Ready<Vec<u8>>>;

/// Replies that wait for the store, or for a reply before them.
#[derive(Default)]
pub(super) struct PendingReplies {
    replies: FuturesOrdered<PendingReply>,
    sizes: VecDeque<Size>,
    /// The sum of the sizes.
    total: Size,
}

/// What a pending reply counts for.
#[derive(Clone, Copy, Default)]
struct Size {
    commands: usize,
    /// The bytes of a reply that waits only for those before it.
    held_bytes: usize,
}

impl PendingReplies {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.total.commands >= IN_FLIGHT_MAX || self.total.held_bytes >= OUTPUT_MAX
    }

    /// Queues a reply that is known, and empties the buffer.
    #[inline]
    pub(super) fn push_ready(&mut self, reply: &mut Vec<u8>) {
        if !reply.is_empty() {
            self.add(Size { commands: 1, held_bytes: reply.len() });
            self.replies.push_back(Either::Right(ready(std::mem::take(reply))));
        }
    }

    /// Queues the reply to a command that is in flight.
    pub(super) fn push(&mut self, in_flight: InFlight) {
        self.add(Size { commands: in_flight.commands, held_bytes: 0 });
        self.replies.push_back(Either::Left(in_flight.reply));
    }

    fn add(&mut self, size: Size) {
        self.total.commands += size.commands;
        self.total.held_bytes += size.held_bytes;
        self.sizes.push_back(size);
    }
}

impl Stream for PendingReplies {
    type Item = Vec<u8>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let next = Pin::new(&mut self.replies).poll_next(context);
        next.map(|reply| {
            let (reply, size) = (reply?, self.sizes.pop_front()?);
            self.total.commands -= size.commands;
            self.total.held_bytes -= size.held_bytes;
            Some(reply)
        })
    }
}
