//! One decision: the steps it takes, and the time it may take for all of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ratekeeper_core::{Evaluator, Limit, Micros};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use super::link::{CallFailure, LateCall, error_of};
use super::script::{self, Lua};
use super::slots::slot_of;
use super::wire::{self, Outcome};
use super::{RedisStore, nonsense};
use crate::charge::{Charge, LIMITS_MAX, Verdict, first_of, merge};
use crate::snapshot::Snapshot;
use crate::store::{LateReply, Op, StoreError};

/// How often a state is read again when somebody else was faster.
const SWAPS_MAX: usize = 100;
/// States are kept until the next whole number of these, as the scripts do.
const KEEP_STEP_US: u64 = 1 << 22;
/// How long a state is kept beyond its time when the time is given and not the server's.
const GIVEN_EXTRA_MS: u64 = 86_400_000;

/// What is left of the time for one decision, and what became of its last step.
pub(super) struct Turn<'s> {
    store: &'s RedisStore,
    deadline: Duration,
    ends: Instant,
    /// The shard of the last command.
    shard: AtomicUsize,
    /// The reply to the script that decides, if it did not come in time.
    late: Mutex<Option<LateCall>>,
}

impl<'s> Turn<'s> {
    pub(super) fn new(store: &'s RedisStore, deadline: Duration) -> Self {
        let (shard, late) = (AtomicUsize::new(0), Mutex::new(None));
        Self { store, deadline, ends: Instant::now() + deadline, shard, late }
    }

    /// The shard of the last command.
    pub(super) fn shard(&self) -> usize {
        self.shard.load(Ordering::Relaxed)
    }

    /// Whether the charge was made after all, once that is known: if the script that makes it was sent
    /// and its reply did not come in time.
    pub(super) fn take_late(&self) -> Option<LateReply> {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Box::pin(async move {
            let Ok(Value::BulkString(reply)) = late.await else { return None };
            match wire::unpack_reply(&reply) {
                Some((Outcome::Fits, at, _)) => Some(at),
                _ => None,
            }
        }))
    }

    async fn call(&self, cmd: Cmd) -> Result<Result<Value, RedisError>, StoreError> {
        let left = self.ends.saturating_duration_since(Instant::now());
        let shard = self.store.servers.shard_of(|| slot_of(&cmd));
        self.shard.store(shard, Ordering::Relaxed);
        let reply = self.store.servers.call(&Arc::new(cmd), left).await;
        reply.map_err(|CallFailure { error, late }| {
            *self.late.lock().unwrap_or_else(PoisonError::into_inner) = late;
            match error {
                StoreError::Deadline(_) => StoreError::Deadline(self.deadline),
                error => error,
            }
        })
    }

    pub(super) async fn command(&self, cmd: Cmd) -> Result<Value, StoreError> {
        let answer = self.call(cmd).await?;
        answer.map_err(|error| error_of(&error))
    }

    /// Calls a script by its name, and once more with its source if the server has forgotten it.
    pub(super) async fn script(
        &self,
        script: &Lua,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, StoreError> {
        let by_name = script.call(true, keys, args);
        match self.call(by_name).await? {
            Err(error) if is_unknown_script(&error) => {
                self.store.counters.scripts_loaded.fetch_add(1, Ordering::Relaxed);
                self.command(script.call(false, keys, args)).await
            }
            answer => answer.map_err(|error| error_of(&error)),
        }
    }

    /// One step for charges whose keys are in one place.
    pub(super) async fn together(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        match op {
            // Debts and refunds of a log are rare, and not in the script.
            Op::Charge | Op::Refund { .. } if charges.iter().any(|c| is_log(c.limit)) => {
                self.by_swap(op, charges, now).await
            }
            _ => self.by_script(op, charges, now).await,
        }
    }

    async fn by_script(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        let letter = match op {
            Op::Peek => b"p",
            Op::Charge => b"f",
            Op::Refund { .. } => b"r",
            Op::Check => b"c",
        };
        let mut terms = Vec::new();
        let mut keys = Vec::with_capacity(charges.len());
        for i in written(charges) {
            let charge = merge(charges, i);
            let packed = wire::pack_terms(&charge);
            if charges.len() > 1 {
                terms.push(packed.len() as u8);
            }
            terms.extend(packed);
            keys.push(self.store.key(&charge));
        }
        let mut args = vec![self.store.time(now), letter.to_vec(), terms];
        if let Op::Refund { charged_at } = op {
            args.push(charged_at.get().to_string().into_bytes());
        }
        let script = match charges {
            [one] => Lua::for_one(&one.limit.params(one.cost)),
            [one, two] if keys.len() == 2 => {
                Lua::for_two(&one.limit.params(one.cost), &two.limit.params(two.cost))
            }
            _ => Lua::for_several(charges.iter().map(|charge| charge.limit.params(charge.cost))),
        };
        let reply = self.script(script, &keys, &args).await?;
        let Value::BulkString(reply) = reply else { return Err(nonsense(&reply)) };
        let no_sense = || StoreError::Nonsense(format!("{reply:?}"));
        let (outcome, at, told) = wire::unpack_reply(&reply).ok_or_else(no_sense)?;
        if outcome == Outcome::Foreign {
            return self.by_swap(op, charges, now).await;
        }
        let verdict = read_verdict(op, charges, outcome, at, told).ok_or_else(no_sense)?;
        // The script and this code must agree; if they do not, neither may be believed.
        let is_question = matches!(op, Op::Check | Op::Peek);
        match is_question && verdict.allowed() != (outcome == Outcome::Fits) {
            true => Err(no_sense()),
            false => Ok(verdict),
        }
    }

    /// Reads the states, works out here what they become, and writes that if nothing has changed
    /// meanwhile: for what the scripts leave out.
    async fn by_swap(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        let written = written(charges);
        let keys: Vec<_> = written.iter().map(|i| self.store.key(&charges[*i])).collect();
        for _ in 0..SWAPS_MAX {
            let reply = self.script(&script::READ, &keys, &[self.store.time(now)]).await?;
            let (at, before) = read_states(&reply).ok_or_else(|| nonsense(&reply))?;
            let unpacked = written.iter().zip(&before).map(|(i, bytes)| {
                wire::unpack_state(bytes, charges[*i].limit).ok_or_else(|| nonsense(&reply))
            });
            let mut states = unpacked.collect::<Result<Vec<_>, _>>()?;
            let verdict = Verdict::of_all(op, charges, at, |i, op, charge| {
                let state = written.iter().position(|w| *w == i).expect("the first is written");
                states[state].act(op, charge.limit, charge.cost, at)
            });
            let mut args = Vec::with_capacity(4 * keys.len());
            for ((i, before), state) in written.iter().zip(before).zip(&states) {
                let after = match *state == Snapshot::fresh(charges[*i].limit) {
                    true => Vec::new(),
                    false => wire::pack_state(state, charges[*i].limit),
                };
                let (command, ms) = self.expiry(state, charges[*i].limit, at);
                args.extend([before, after, command.to_vec(), ms.to_string().into_bytes()]);
            }
            let is_same = args.chunks(4).all(|states| states[0] == states[1]);
            if is_same || self.script(&script::SWAP, &keys, &args).await? == Value::Int(1) {
                return Ok(verdict);
            }
        }
        Err(StoreError::Refused("the key is changed too often by others".to_string()))
    }

    /// How long to keep a state: until it equals none.
    fn expiry(&self, state: &Snapshot, limit: &Limit, now: Micros) -> (&'static [u8], u64) {
        let expires_at = match (state, limit.evaluator()) {
            (Snapshot::Cell(cell), _) => cell.expires_at(),
            (Snapshot::Log(log), Evaluator::Log(rule)) => rule.expires_at(log),
            (Snapshot::Log(_), Evaluator::Cell(_)) => now.get(),
        };
        match self.store.config.is_time_given {
            true => (b"PX", expires_at.saturating_sub(now.get()) / 1_000 + 1 + GIVEN_EXTRA_MS),
            false => (b"PXAT", (expires_at | (KEEP_STEP_US - 1)) / 1_000 + 1),
        }
    }

    /// One step after the other, for charges that no single step can reach.
    pub(super) async fn apart(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        if op == Op::Check {
            let peeked = self.each(Op::Peek, charges, now).await?;
            if !peeked.allowed() {
                return Ok(peeked);
            }
        }
        self.each(op, charges, now).await
    }

    /// Does `op` place by place. A check that is denied at one gives back what it has charged.
    async fn each(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Verdict, StoreError> {
        let mut done: Vec<(Vec<Charge<'_>>, Verdict)> = Vec::new();
        for place in places(charges) {
            let verdict = self.together(op, &place, now).await;
            let is_refused = op == Op::Check && !verdict.as_ref().is_ok_and(|v| v.allowed());
            if is_refused {
                self.give_back(&done, now).await;
                done.clear();
            }
            done.push((place, verdict?));
            if is_refused {
                break;
            }
        }
        let decided_at = done.iter().map(|(_, verdict)| verdict.at()).max().unwrap_or(now);
        let find = |charge: &Charge<'_>| {
            done.iter().find_map(|(place, verdict)| {
                let i = place.iter().position(|other| other.shares_with(charge))?;
                Some(verdict.decisions()[i])
            })
        };
        let mut others = Vec::new();
        for charge in charges.iter().filter(|charge| find(charge).is_none()) {
            // Not asked any more, since another has denied: as it is now.
            others.push((charge, self.together(Op::Peek, &[*charge], now).await?));
        }
        Ok(Verdict::build(charges, decided_at, |_, charge| {
            find(charge).unwrap_or_else(|| {
                let other = others.iter().find(|(other, _)| other.shares_with(charge));
                *other.expect("every charge was asked").1
            })
        }))
    }

    /// Gives back what was charged, which has a time of its own. What cannot be given back runs out by
    /// itself.
    async fn give_back(&self, done: &[(Vec<Charge<'_>>, Verdict)], now: Micros) {
        for (place, verdict) in done {
            let refund = Op::Refund { charged_at: verdict.at() };
            let _ = self.store.turn().together(refund, place, now).await;
        }
    }
}

/// The charges that stand for all charges to the same usage.
fn written(charges: &[Charge<'_>]) -> Vec<usize> {
    (0..charges.len()).filter(|i| first_of(charges, *i) == *i).collect()
}

/// The charges, by the place in a cluster where their keys are.
fn places<'c>(charges: &[Charge<'c>]) -> Vec<Vec<Charge<'c>>> {
    let mut places: Vec<Vec<Charge<'c>>> = Vec::with_capacity(LIMITS_MAX);
    for charge in charges {
        match places.iter_mut().find(|place| place[0].key == charge.key) {
            Some(place) => place.push(*charge),
            None => places.push(vec![*charge]),
        }
    }
    places
}

fn is_log(limit: &Limit) -> bool {
    matches!(limit.evaluator(), Evaluator::Log(_))
}

/// The decisions, from the states as they were.
fn read_verdict(
    op: Op,
    charges: &[Charge<'_>],
    outcome: Outcome,
    at: Micros,
    mut told: &[u8],
) -> Option<Verdict> {
    let is_charged = op != Op::Peek && outcome == Outcome::Fits;
    let mut is_sound = true;
    let verdict = Verdict::build(charges, at, |_, charge| {
        let mut next = || {
            let (own, rest) = match charges.len() {
                1 => (told, &[][..]),
                _ => wire::split_told(told)?,
            };
            told = rest;
            wire::decide(own, charge, op, is_charged, at)
        };
        next().unwrap_or_else(|| {
            is_sound = false;
            Snapshot::fresh(charge.limit).act(Op::Peek, charge.limit, charge.cost, at)
        })
    });
    is_sound.then_some(verdict)
}

/// The time and the states that `read.lua` tells.
fn read_states(reply: &Value) -> Option<(Micros, Vec<Vec<u8>>)> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(now), Value::Array(states)] = &parts[..] else { return None };
    let now = std::str::from_utf8(now).ok()?.parse().ok()?;
    let states = states.iter().map(|state| match state {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::Nil => Some(Vec::new()),
        _ => None,
    });
    Some((Micros::new(now), states.collect::<Option<_>>()?))
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
