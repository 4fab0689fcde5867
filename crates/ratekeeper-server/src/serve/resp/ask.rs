//! What a command wants of the store, and how the answer is written.

use std::sync::Arc;

use ratekeeper::Gate;
use ratekeeper_core::{Cost, Decision, Limit, Micros, Wait};
use ratekeeper_stores::{Charge, MemoryStore, Op};

use super::codec::{Protocol, Reply};
use crate::serve::meters::Outcome;

/// One limit, one key, and what to do.
pub(super) struct Ask<'a> {
    pub(super) deed: Deed,
    pub(super) limit: &'a Arc<Limit>,
    pub(super) key: &'a [u8],
    pub(super) cost: Cost,
    pub(super) form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Check,
    Peek,
    Charge,
    Refund,
    Reset,
}

/// How a decision is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Five integers, as redis-cell has them.
    Throttle,
    /// The same for a quantity of nothing, which is never denied.
    ThrottlePeek,
    /// Names and values.
    Named,
}

/// The same for a store that takes its time: it outlives the input.
pub(super) struct OwnedAsk {
    deed: Deed,
    limit: Arc<Limit>,
    key: Box<[u8]>,
    cost: Cost,
    form: Form,
    protocol: Protocol,
}

/// What a store elsewhere has said.
pub(super) struct Settled {
    /// As it is written.
    pub(super) answer: Vec<u8>,
    pub(super) outcome: Outcome,
    pub(super) is_degraded: bool,
}

impl Ask<'_> {
    /// Asks a store in this process.
    #[inline]
    pub(super) fn settle(
        &self,
        (gate, store): (&Gate, &MemoryStore),
        now: Micros,
        mut reply: Reply<'_>,
    ) -> Outcome {
        let charge = Charge::new(self.limit, self.key).cost(self.cost);
        let decision = match self.deed {
            Deed::Check => gate.timed(|| store.check(&charge, now)),
            Deed::Peek => store.apply_one(Op::Peek, &charge, now),
            Deed::Charge => store.apply_one(Op::Charge, &charge, now),
            Deed::Refund => store.apply_one(Op::Refund { charged_at: now }, &charge, now),
            Deed::Reset => {
                store.reset(&charge);
                reply.ok();
                return Outcome::Other;
            }
        };
        self.form.write(&decision, false, &mut reply);
        self.deed.outcome(&decision)
    }

    pub(super) fn to_owned(&self, protocol: Protocol) -> OwnedAsk {
        let Self { deed, limit, key, cost, form } = *self;
        OwnedAsk { deed, limit: Arc::clone(limit), key: key.into(), cost, form, protocol }
    }
}

impl OwnedAsk {
    /// Asks a store that may be elsewhere, and gives the answer as it is written.
    pub(super) async fn settle(&self, gate: &Gate) -> Settled {
        let charge = Charge::new(&self.limit, &self.key).cost(self.cost);
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, self.protocol);
        let op = match self.deed {
            Deed::Check => Op::Check,
            Deed::Peek => Op::Peek,
            Deed::Charge => Op::Charge,
            Deed::Refund => Op::refund_latest(),
            Deed::Reset => {
                let outcome = match gate.reset(&charge).await {
                    Ok(()) => {
                        reply.ok();
                        Outcome::Other
                    }
                    Err(error) => failed(&error, &mut reply),
                };
                return Settled { answer: out, outcome, is_degraded: false };
            }
        };
        let mut is_degraded = false;
        let outcome = match gate.apply(op, &[charge]).await {
            Ok(decided) => {
                is_degraded = decided.is_degraded();
                self.form.write(&decided.verdict, is_degraded, &mut reply);
                self.deed.outcome(&decided.verdict)
            }
            Err(error) => failed(&error, &mut reply),
        };
        Settled { answer: out, outcome, is_degraded }
    }

    pub(super) fn limit(&self) -> &Limit {
        &self.limit
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }
}

fn failed(error: &dyn std::fmt::Display, reply: &mut Reply<'_>) -> Outcome {
    reply.error(&format!("ERR {error}"));
    Outcome::Error
}

impl Deed {
    /// Only a check asks whether it may pass.
    #[inline]
    fn outcome(self, decision: &Decision) -> Outcome {
        match self {
            Self::Check => Outcome::of(decision.allowed()),
            _ => Outcome::Other,
        }
    }
}

impl Form {
    #[inline]
    fn write(self, decision: &Decision, is_degraded: bool, reply: &mut Reply<'_>) {
        match self {
            Self::Throttle => write_throttle(decision, decision.wait(), reply),
            Self::ThrottlePeek => write_throttle(decision, Wait::None, reply),
            Self::Named => write_named(decision, is_degraded, reply),
        }
    }
}

#[inline]
fn write_throttle(decision: &Decision, wait: Wait, reply: &mut Reply<'_>) {
    let (limited, retry_after) = match wait {
        Wait::None => (0, -1),
        Wait::Micros(us) => (1, us.div_ceil(1_000_000) as i64),
        Wait::Never => (1, -1),
    };
    reply.array(5);
    reply.integer(limited);
    reply.count(decision.limit());
    reply.count(decision.remaining());
    reply.integer(retry_after);
    reply.count((decision.reset_after().as_micros() as u64).div_ceil(1_000_000));
}

fn write_named(decision: &Decision, is_degraded: bool, reply: &mut Reply<'_>) {
    reply.map(8);
    reply.text("allowed");
    reply.boolean(decision.allowed());
    reply.text("limit");
    reply.count(decision.limit());
    reply.text("remaining");
    reply.count(decision.remaining());
    reply.text("retry_after_ms");
    reply.integer(match decision.wait() {
        Wait::Micros(us) => us.div_ceil(1_000) as i64,
        Wait::None | Wait::Never => -1,
    });
    reply.text("reset_after_ms");
    reply.count((decision.reset_after().as_micros() as u64).div_ceil(1_000));
    reply.text("delay_ms");
    reply.count((decision.delay().as_micros() as u64).div_ceil(1_000));
    reply.text("never");
    reply.boolean(decision.exceeds_capacity());
    reply.text("degraded");
    reply.boolean(is_degraded);
}
