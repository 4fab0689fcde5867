//! Commands that wait for a shared store.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use ratekeeper::Micros;
use tokio::runtime::Handle;
use tokio::task::unconstrained;

use super::RespServer;
use super::codec::{ReplyWriter, RespVersion};
use super::executor::write_integer;
use super::hold_command::HoldCommand;
use super::key_command::OwnedKeyCommand;
use super::pending::IN_FLIGHT_MAX;
use super::rate_command::{RateCommand, Running};
use crate::serve::request_metrics::Tally;

/// A command, or a transaction, that waits for a shared store. It is sent when its reply is first polled.
pub(super) struct InFlight {
    pub(super) reply: BoxFuture<'static, Vec<u8>>,
    /// How many commands it is; one on several keys counts as many.
    pub(super) commands: usize,
}

impl InFlight {
    pub(super) fn rate(
        server: &Arc<RespServer>,
        command: &RateCommand<'_>,
        running: Running,
        protocol: RespVersion,
        began: Micros,
    ) -> Self {
        let RateCommand { action, limit, key, cost, overdraft, format } = *command;
        let (server, limit) = (Arc::clone(server), Arc::clone(limit));
        let key = Box::<[u8]>::from(key);
        let reply = async move {
            let finished = running.finish().await;
            let mut bytes = Vec::new();
            let now = server.limiter.engine().now();
            let command = RateCommand { action, limit: &limit, key: &key, cost, overdraft, format };
            let mut reply = ReplyWriter::new(&mut bytes, protocol);
            let outcome = command.reply(&finished, &server, now, &mut reply);
            server.metrics.record(&Tally::one(outcome), now.since(began));
            server.trace(&limit, outcome, finished.is_degraded(), began);
            bytes
        };
        Self { reply: reply.boxed(), commands: 1 }
    }

    pub(super) fn hold(
        server: &Arc<RespServer>,
        command: HoldCommand,
        protocol: RespVersion,
        began: Micros,
    ) -> Self {
        let server = Arc::clone(server);
        let reply = async move {
            let mut bytes = Vec::new();
            let outcome = command.run(&server, &mut ReplyWriter::new(&mut bytes, protocol)).await;
            let now = server.limiter.engine().now();
            server.metrics.record(&Tally::one(outcome), now.since(began));
            bytes
        };
        Self { reply: reply.boxed(), commands: 1 }
    }

    pub(super) fn keys(
        server: &Arc<RespServer>,
        command: OwnedKeyCommand,
        protocol: RespVersion,
        began: Micros,
    ) -> Self {
        let (server, commands) = (Arc::clone(server), command.keys());
        let reply = async move {
            let engine = server.limiter.engine();
            let result = command.run(engine).await;
            let mut bytes = Vec::new();
            let outcome = write_integer(&result, &mut ReplyWriter::new(&mut bytes, protocol));
            server.metrics.record(&Tally::one(outcome), engine.now().since(began));
            bytes
        };
        Self { reply: reply.boxed(), commands }
    }

    /// Returns the reply of a transaction: replies of commands in flight, each after bytes that are known,
    /// and then the last known bytes.
    pub(super) fn transaction(replies: Vec<(Vec<u8>, InFlight)>, last: Vec<u8>) -> Self {
        let commands = replies.iter().map(|(_, in_flight)| in_flight.commands).sum();
        let reply = async move {
            let (known, replies): (Vec<_>, Vec<_>) =
                replies.into_iter().map(|(known, in_flight)| (known, in_flight.reply)).unzip();
            let mut replies = stream::iter(replies).buffered(IN_FLIGHT_MAX);
            let mut bytes = Vec::new();
            for known in known {
                bytes.extend(known);
                bytes.extend(replies.next().await.unwrap_or_default());
            }
            bytes.extend(last);
            bytes
        };
        // As for single commands, the runtime's budget would change their order.
        let reply = Unstoppable(Some(unconstrained(reply).boxed()));
        Self { reply: reply.boxed(), commands }
    }
}

/// A future that is completed in the background if it is dropped: a transaction is executed as a whole, also
/// if its connection is lost meanwhile.
struct Unstoppable(Option<BoxFuture<'static, Vec<u8>>>);

impl Future for Unstoppable {
    type Output = Vec<u8>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let reply = future.as_mut().poll(context);
        if reply.is_ready() {
            self.0 = None;
        }
        reply
    }
}

impl Drop for Unstoppable {
    fn drop(&mut self) {
        if let (Some(future), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(future);
        }
    }
}
