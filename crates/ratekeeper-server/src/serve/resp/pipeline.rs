//! A connection whose counts are kept elsewhere: many questions are under way at once.

use std::future::{Future, ready};
use std::io;
use std::sync::{Arc, PoisonError};

use futures_util::future::Either;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::unconstrained;

use super::ask::{OwnedAsk, Settled};
use super::codec::{Parsed, parse};
use super::commands::{Call, Flow, Step, begin};
use super::connection::{Buffers, OUTPUT_MAX, RespHandler, complain, of_answer};
use super::session::Session;
use super::wire::{Read, Wire};
use crate::serve::meters::Tally;

/// The most commands of one connection that are under way.
const UNDER_WAY_MAX: usize = 128;

/// The next thing that the input asks for.
enum Next {
    /// A question to the store.
    Ask(OwnedAsk),
    /// An answer that is known already.
    Answer(Vec<u8>, Flow),
    /// There is no whole command.
    Nothing,
}

impl RespHandler {
    /// Questions are put in the order of their commands, and answers leave in that order. No question
    /// waits for the answer to the one before. Only a server that has to be taught a script first, or for
    /// which thousands wait to be sent (in a cluster, a hundred), may see a few in another order.
    ///
    /// They are not constrained by the runtime's budget: it would put off those that exceed it, and
    /// wake them in reverse.
    pub(super) async fn serve_by_asking<S>(
        &self,
        wire: &mut Wire<S>,
        session: &mut Session,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut under_way = FuturesOrdered::new();
        // Bytes of answers that wait for those before them.
        let mut held = 0;
        let mut is_open = true;
        let mut is_read = false;
        while is_open || !under_way.is_empty() {
            while is_open && under_way.len() < UNDER_WAY_MAX && held < OUTPUT_MAX {
                match self.next(wire, session) {
                    Next::Nothing => {
                        is_open = !is_read;
                        break;
                    }
                    Next::Ask(ask) => under_way.push_back(Either::Left(self.ask(ask))),
                    Next::Answer(answer, flow) => {
                        held += answer.len();
                        under_way.push_back(Either::Right(ready((answer.len(), answer))));
                        is_open = flow == Flow::GoOn;
                    }
                }
            }
            let is_room = under_way.len() < UNDER_WAY_MAX && held < OUTPUT_MAX;
            tokio::select! {
                // Also begins those that were put just now.
                Some((known, answer)) = unconstrained(under_way.next()) => {
                    held -= known;
                    wire.output.extend_from_slice(&answer);
                    while wire.output.len() < OUTPUT_MAX {
                        let Some(Some((known, answer))) = unconstrained(under_way.next()).now_or_never() else { break };
                        held -= known;
                        wire.output.extend_from_slice(&answer);
                    }
                    wire.flush().await?;
                }
                read = wire.read(), if is_open && !is_read && is_room => is_read = read? != Read::More,
                else => {}
            }
        }
        Ok(())
    }

    /// The answer to a question; none of its bytes is known in advance.
    fn ask(&self, ask: OwnedAsk) -> impl Future<Output = (usize, Vec<u8>)> + use<> {
        let door = Arc::clone(&self.door);
        let began = door.gate.now();
        async move {
            let Settled { answer, outcome, is_degraded } = ask.settle(&door.gate).await;
            let now = door.gate.now();
            door.note(ask.limit(), ask.key(), outcome, now);
            door.meter.record(&Tally::one(outcome), now.since(began));
            door.trace(ask.limit(), outcome, is_degraded, began);
            (0, answer)
        }
    }

    fn next<S>(&self, wire: &mut Wire<S>, session: &mut Session) -> Next
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let Buffers { limits, spans } = &mut *buffers;
        let mut out = Vec::new();
        loop {
            let len = match parse(&mut wire.input, spans) {
                Ok(Parsed::Command(len)) => len,
                Ok(Parsed::Part) => return Next::Nothing,
                Err(error) => {
                    complain(error, &mut out);
                    return Next::Answer(out, Flow::Close);
                }
            };
            let args = spans.of(&wire.input);
            if args.len() == 0 {
                wire.consume(len);
                continue;
            }
            let call = Call { args, door: &self.door, session: &mut *session, out: &mut out };
            let next = match begin(call, limits) {
                Step::Asks(ask) => Next::Ask(ask.to_owned(session.protocol)),
                Step::Answered(flow) => {
                    self.door.meter.count(of_answer(&out));
                    Next::Answer(out, flow)
                }
            };
            wire.consume(len);
            if session.is_trusted {
                wire.confirm();
            }
            return next;
        }
    }
}
