//! One operation on the store: its steps, and the deadline for all of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use ratekeeper_core::{BucketCell, Cell, Decision, Evaluator, Limit, Micros};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use super::codec::{self, ScriptOutcome};
use super::connection::{CallFailure, LateCall, error_of};
use super::script::{self, LuaScript};
use super::script_call::ScriptCall;
use super::slots::slot_of;
use super::{RedisStore, invalid_response};
use crate::charge::{Charge, ChargeKind, MergedCharges};
use crate::decision_inputs::StateBefore;
use crate::snapshot::{Snapshot, apply_to_buckets};
use crate::store::{LateReply, Op, StoreError, UsageOp};
use crate::verdict::{Decisions, Verdict, apply_all};

/// How often a state is read again after another client has changed it.
const SWAPS_MAX: usize = 100;
/// States are kept until the next whole number of these, as the scripts do.
const KEEP_STEP_US: u64 = 1 << 22;
/// How much longer a state is kept if the time is the caller's and not the server's.
const GIVEN_EXTRA_MS: u64 = 86_400_000;

/// An operation with its deadline, and the result of its last step.
pub(super) struct Operation<'s> {
    store: &'s RedisStore,
    deadline: Duration,
    ends: Instant,
    /// The shard of the last command.
    shard: AtomicUsize,
    /// The reply to the script that decides, if it did not come in time.
    late: Mutex<Option<LateCall>>,
    /// When the charge is made if the states are swapped, once that has been sent.
    swapped_at: Mutex<Option<Micros>>,
}

impl<'s> Operation<'s> {
    pub(super) fn new(store: &'s RedisStore, deadline: Duration) -> Self {
        Self::ending(store, deadline, Instant::now() + deadline)
    }

    fn ending(store: &'s RedisStore, deadline: Duration, ends: Instant) -> Self {
        let (shard, late, swapped_at) = (AtomicUsize::new(0), Mutex::new(None), Mutex::new(None));
        Self { store, deadline, ends, shard, late, swapped_at }
    }

    /// A step of this operation, with the same deadline.
    pub(super) fn step(&self) -> Self {
        Self::ending(self.store, self.deadline, self.ends)
    }

    /// The shard of the last command.
    pub(super) fn shard(&self) -> usize {
        self.shard.load(Ordering::Relaxed)
    }

    /// Returns a future of whether the charge was made after all, if its script was sent and the
    /// reply did not arrive in time.
    pub(super) fn take_late(&self) -> Option<LateReply> {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let swapped_at = *self.swapped_at.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Box::pin(async move {
            match late.await.ok()? {
                Value::BulkString(reply) => match codec::decode_reply(&reply)? {
                    (ScriptOutcome::Fits, at, _) => Some(at),
                    _ => None,
                },
                Value::Int(1) => swapped_at,
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
        let reply = self.call(cmd).await?;
        reply.map_err(|error| error_of(&error))
    }

    /// Calls a script by its hash, and again with its source if the server does not have it.
    pub(super) async fn script(
        &self,
        script: &LuaScript,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, StoreError> {
        let by_hash = script.call(true, keys, args);
        match self.call(by_hash).await? {
            Err(error) if is_unknown_script(&error) => {
                self.store.counters.scripts_loaded.fetch_add(1, Ordering::Relaxed);
                self.command(script.call(false, keys, args)).await
            }
            reply => reply.map_err(|error| error_of(&error)),
        }
    }

    /// Decides in one atomic step on charges of different usages, whose keys are in one slot.
    pub(super) async fn together(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Decided, StoreError> {
        match charges.iter().any(|charge| is_left_out(op, charge)) {
            true => self.by_swap(op, charges, now).await,
            false => self.by_script(op, charges, now).await,
        }
    }

    async fn by_script(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Decided, StoreError> {
        let decided = self.by_guarded_script(op, charges, now, None).await?;
        decided.ok_or_else(|| invalid_response(&Value::Nil))
    }

    /// Applies `op` to charges of different usages, whose keys are in one slot with the guard, if that
    /// exists, and deletes the guard: in one atomic step. Returns `None` if the guard does not exist.
    pub(super) async fn guarded(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
        guard: &[u8],
    ) -> Result<Option<Decided>, StoreError> {
        match charges.iter().any(|charge| is_left_out(op, charge)) {
            true => self.by_guarded_swap(op, charges, now, Some(guard)).await,
            false => self.by_guarded_script(op, charges, now, Some(guard)).await,
        }
    }

    async fn by_guarded_script(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
        guard: Option<&[u8]>,
    ) -> Result<Option<Decided>, StoreError> {
        let mut keys = self.keys(charges);
        keys.extend(guard.map(Vec::from));
        let mut call = ScriptCall::new(op, charges, now);
        let args = call.args(self.store.time(now), op);
        let mut reply = self.script_reply(&call, &keys, &args, guard.is_some()).await?;
        if let Some((ScriptOutcome::NoWindow, at, _)) =
            reply.as_deref().and_then(codec::decode_reply)
        {
            // This node's clock is wrong by more than a window, but the server's decides.
            call = ScriptCall::new(op, charges, at);
            let args = call.args(self.store.time(now), op);
            reply = self.script_reply(&call, &keys, &args, guard.is_some()).await?;
        }
        let Some(reply) = reply else { return Ok(None) };
        let invalid = || invalid_response(&Value::BulkString(reply.clone()));
        let (outcome, at, states) = codec::decode_reply(&reply).ok_or_else(invalid)?;
        if matches!(outcome, ScriptOutcome::OtherLimit | ScriptOutcome::NoWindow) {
            return self.by_guarded_swap(op, charges, now, guard).await;
        }
        let is_charged = op != Op::Peek && outcome == ScriptOutcome::Fits;
        let mut states = states;
        let mut next_state = || {
            let (own, rest) = call.split_state(states)?;
            states = rest;
            Some(own)
        };
        let decide = |charge: &Charge<'_>| {
            let Some(limit) = charge.class else {
                let state = next_state()?;
                let decision = codec::decide(state, charge, op, is_charged, at)?;
                let before = match is_denial(op, &decision) {
                    true => codec::state_before(state, charge),
                    false => None,
                };
                return Some((decision, before));
            };
            let states: Vec<_> = limit.buckets().map(|_| next_state()).collect::<Option<_>>()?;
            let mut cells = codec::decode_buckets(charge, states.into_iter(), at)?;
            let before = cells.clone();
            let step = if is_charged { op } else { Op::Peek };
            let decision = apply_to_buckets(step, limit, charge, &mut cells);
            let before = is_denial(op, &decision).then_some(StateBefore::Buckets(before));
            Some((decision, before))
        };
        let (decisions, states) =
            charges.iter().map(decide).collect::<Option<_>>().ok_or_else(invalid)?;
        let decided = Decided { at, decisions, states };
        // The script and this code must agree; if they do not, neither is trusted.
        let decides = matches!(op, Op::Check | Op::Peek);
        match decides && decided.all_fit() != (outcome == ScriptOutcome::Fits) {
            true => Err(invalid()),
            false => Ok(Some(decided)),
        }
    }

    /// Calls a script that decides. Returns `None` if its guard does not exist.
    async fn script_reply(
        &self,
        call: &ScriptCall,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
        is_guarded: bool,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let script = if is_guarded { call.script.guarded() } else { call.script };
        match self.script(script, keys, args).await? {
            Value::BulkString(reply) => Ok(Some(reply)),
            Value::Nil if is_guarded => Ok(None),
            other => Err(invalid_response(&other)),
        }
    }

    /// Reads the states, computes here what they become, and writes that if nothing has changed
    /// meanwhile: for what the scripts leave out.
    async fn by_swap(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Decided, StoreError> {
        let decided = self.by_guarded_swap(op, charges, now, None).await?;
        decided.ok_or_else(|| invalid_response(&Value::Nil))
    }

    async fn by_guarded_swap(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
        guard: Option<&[u8]>,
    ) -> Result<Option<Decided>, StoreError> {
        let mut keys = self.keys(charges);
        keys.extend(guard.map(Vec::from));
        let (mut usages, mut starts) = (Vec::new(), Vec::with_capacity(charges.len()));
        for charge in charges {
            starts.push(usages.len());
            usages.extend(charge.usages());
        }
        for _ in 0..SWAPS_MAX {
            let reply = self.script(&script::READ, &keys, &[self.store.time(now)]).await?;
            let (at, mut before) = read_states(&reply).ok_or_else(|| invalid_response(&reply))?;
            let guard_value = guard.and_then(|_| before.pop());
            if guard_value.as_ref().is_some_and(Vec::is_empty) {
                return Ok(None);
            }
            let unpacked = usages.iter().zip(&before).map(|(usage, bytes)| {
                codec::decode_state(bytes, usage.limit).ok_or_else(|| invalid_response(&reply))
            });
            let mut states = unpacked.collect::<Result<Vec<_>, _>>()?;
            let read = states.clone();
            let decisions = apply_all(op, charges, |i, op, charge| {
                apply_to_states(op, charge, &mut states[starts[i]..], at)
            });
            let denied_from = |(i, decision): (usize, &Decision)| {
                is_denial(op, decision).then(|| state_of(&charges[i], &read[starts[i]..], at))
            };
            let denied_from = decisions.iter().enumerate().map(denied_from).collect();
            let mut args = Vec::with_capacity(4 * keys.len());
            for ((charge, before), state) in usages.iter().zip(before).zip(&states) {
                let after = match *state == Snapshot::fresh(charge.limit) {
                    true => Vec::new(),
                    false => codec::encode_state(state, charge.limit),
                };
                let (command, ms) = self.expiry(state, charge.limit, at);
                args.extend([before, after, command.to_vec(), ms.to_string().into_bytes()]);
            }
            // The guard is deleted.
            args.extend(guard_value.into_iter().flat_map(|value| [value, vec![], vec![], vec![]]));
            let is_same = args.chunks(4).all(|states| states[0] == states[1]);
            let is_charged = op == Op::Charge || decisions.iter().all(Decision::allowed);
            *self.swapped_at.lock().unwrap_or_else(PoisonError::into_inner) =
                is_charged.then_some(at);
            if is_same || self.script(&script::SWAP, &keys, &args).await? == Value::Int(1) {
                return Ok(Some(Decided { at, decisions, states: denied_from }));
            }
        }
        Err(StoreError::Refused("the key is changed too often by others".into()))
    }

    /// Returns the time until the state of this charge's key is equivalent to none.
    pub(super) async fn usage_ttl(
        &self,
        charge: &Charge<'_>,
        now: Micros,
    ) -> Result<Duration, StoreError> {
        if is_log(charge.limit) {
            return self.key_ttl(&self.store.key(charge)).await;
        }
        let keys = self.keys(&[*charge]);
        let reply = self.script(&script::READ, &keys, &[self.store.time(now)]).await?;
        let invalid = || invalid_response(&reply);
        let (at, states) = read_states(&reply).ok_or_else(invalid)?;
        let mut ends_at = 0;
        for (usage, bytes) in charge.usages().zip(&states) {
            let state = codec::decode_state(bytes, usage.limit).ok_or_else(invalid)?;
            ends_at = ends_at.max(expires_at(&state, usage.limit, at));
        }
        Ok(Duration::from_micros(ends_at.saturating_sub(at.get())))
    }

    /// Returns how long the server keeps a key. A log does not say what its window was.
    async fn key_ttl(&self, key: &[u8]) -> Result<Duration, StoreError> {
        let mut cmd = Cmd::new();
        cmd.arg("PTTL").arg(key);
        let extra_ms = if self.store.config.is_time_given { GIVEN_EXTRA_MS } else { 0 };
        match self.command(cmd).await? {
            // Negative if there is no such key.
            Value::Int(ms) => {
                let ms = u64::try_from(ms).unwrap_or_default();
                Ok(Duration::from_millis(ms.saturating_sub(extra_ms)))
            }
            reply => Err(invalid_response(&reply)),
        }
    }

    /// The keys of all usages of these charges.
    pub(super) fn keys(&self, charges: &[Charge<'_>]) -> Vec<Vec<u8>> {
        charges.iter().flat_map(Charge::usages).map(|usage| self.store.key(&usage)).collect()
    }

    /// How long to keep a state: until it is equivalent to none.
    fn expiry(&self, state: &Snapshot, limit: &Limit, now: Micros) -> (&'static [u8], u64) {
        let expires_at = expires_at(state, limit, now);
        match self.store.config.is_time_given {
            true => (b"PX", expires_at.saturating_sub(now.get()) / 1_000 + 1 + GIVEN_EXTRA_MS),
            false => (b"PXAT", (expires_at | (KEEP_STEP_US - 1)) / 1_000 + 1),
        }
    }

    /// Decides on charges whose keys are in several slots of a cluster, in one step for each key.
    /// A check first peeks at all keys, so that most denials charge nothing.
    pub(super) async fn across_slots(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Micros,
    ) -> Result<Decided, StoreError> {
        let groups = by_key(charges);
        if op != Op::Check {
            return self.for_each(op, &groups, now).await.map(|done| gather(charges, &done, now));
        }
        let peeked = self.for_each(Op::Peek, &groups, now).await?;
        if !peeked.iter().all(|done| done.decided.all_fit()) {
            return Ok(gather(charges, &peeked, now));
        }
        let mut checked = Vec::with_capacity(groups.len());
        let mut failure = None;
        for result in self.try_for_each(op, &groups, now).await {
            match result {
                Ok(done) => checked.push(done),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let (charged, mut denied): (Vec<_>, Vec<_>) =
            checked.into_iter().partition(|done| done.decided.all_fit());
        if failure.is_none() && denied.is_empty() {
            return Ok(gather(charges, &charged, now));
        }
        self.refund_all(&charged, now).await;
        if let Some(failure) = failure {
            return Err(self.failed(failure));
        }
        let refunded: Vec<_> = charged.into_iter().map(|done| done.group).collect();
        denied.extend(self.for_each(Op::Peek, &refunded, now).await?);
        Ok(gather(charges, &denied, now))
    }

    /// Applies `op` to all groups at the same time. Fails if one of them does.
    async fn for_each<'c>(
        &self,
        op: Op,
        groups: &[Group<'c>],
        now: Micros,
    ) -> Result<Vec<GroupDecided<'c>>, StoreError> {
        let done: Result<Vec<_>, _> =
            self.try_for_each(op, groups, now).await.into_iter().collect();
        done.map_err(|failure| self.failed(failure))
    }

    async fn try_for_each<'c>(
        &self,
        op: Op,
        groups: &[Group<'c>],
        now: Micros,
    ) -> Vec<Result<GroupDecided<'c>, StepFailure>> {
        join_all(groups.iter().map(async |group| {
            let step = self.step();
            match step.together(op, &group.charges, now).await {
                Ok(decided) => Ok(GroupDecided { group: group.clone(), decided }),
                Err(error) => Err(StepFailure { error, shard: step.shard() }),
            }
        }))
        .await
    }

    fn failed(&self, StepFailure { error, shard }: StepFailure) -> StoreError {
        self.shard.store(shard, Ordering::Relaxed);
        error
    }

    /// Refunds what was charged, within a deadline of its own. What cannot be refunded expires; so does a
    /// charge that was cut, of which it is not known how much was charged.
    async fn refund_all(&self, charged: &[GroupDecided<'_>], now: Micros) {
        let step = self.store.operation();
        let refunds = charged.iter().map(async |GroupDecided { group, decided }| {
            let refund = Op::Refund { charged_at: decided.at };
            let whole = group.charges.iter().zip(&decided.decisions);
            let whole = whole.filter(|(_, decision)| !decision.is_cut());
            let charges: Vec<_> =
                whole.map(|(charge, decision)| charge.decided(decision)).collect();
            if !charges.is_empty() {
                let _ = step.together(refund, &charges, now).await;
            }
        });
        join_all(refunds).await;
    }
}

/// When it was decided, by the store's clock, and a decision for each charge.
pub(super) struct Decided {
    pub(super) at: Micros,
    pub(super) decisions: Decisions,
    /// By charge: what a denial of a check was computed from.
    pub(super) states: Vec<Option<StateBefore>>,
}

impl Decided {
    /// Returns the verdict on charges that were merged to those that this decides on.
    pub(super) fn into_verdict(self, merged: &MergedCharges<'_>) -> Verdict {
        Verdict::of_states(merged, self.at, &self.decisions, self.states)
    }

    fn all_fit(&self) -> bool {
        self.decisions.iter().all(Decision::allowed)
    }
}

/// Charges to one key, which is one slot of a cluster.
#[derive(Clone)]
pub(super) struct Group<'c> {
    pub(super) charges: Vec<Charge<'c>>,
    /// Their indices among all charges.
    indices: Vec<usize>,
}

pub(super) struct GroupDecided<'c> {
    pub(super) group: Group<'c>,
    pub(super) decided: Decided,
}

struct StepFailure {
    error: StoreError,
    shard: usize,
}

pub(super) fn by_key<'c>(charges: &[Charge<'c>]) -> Vec<Group<'c>> {
    let mut groups: Vec<Group<'c>> = Vec::new();
    let mut of_key = HashMap::with_capacity(charges.len());
    for (i, charge) in charges.iter().enumerate() {
        let group = *of_key.entry(charge.key).or_insert(groups.len());
        if group == groups.len() {
            groups.push(Group { charges: Vec::new(), indices: Vec::new() });
        }
        groups[group].charges.push(*charge);
        groups[group].indices.push(i);
    }
    groups
}

/// Puts the decisions of all groups in the order of the charges.
pub(super) fn gather(charges: &[Charge<'_>], groups: &[GroupDecided<'_>], now: Micros) -> Decided {
    let mut decisions: Vec<Option<Decision>> = vec![None; charges.len()];
    let mut states = vec![None; charges.len()];
    for GroupDecided { group, decided } in groups {
        for (i, decision) in group.indices.iter().zip(&decided.decisions) {
            decisions[*i] = Some(*decision);
        }
        for (i, state) in group.indices.iter().zip(&decided.states) {
            states[*i].clone_from(state);
        }
    }
    let at = groups.iter().map(|done| done.decided.at).max().unwrap_or(now);
    let decisions = decisions.into_iter().map(|decision| decision.expect("all are decided"));
    Decided { at, decisions: decisions.collect(), states }
}

/// Whether the scripts leave out what `op` does to a charge: debts and refunds of a log or of a limit with guarantees,
/// and looks that deny nothing, which are rare.
fn is_left_out(op: Op, charge: &Charge<'_>) -> bool {
    if charge.class.is_some() {
        return !matches!(op.on(charge).0, UsageOp::Check | UsageOp::Peek);
    }
    match op {
        Op::Peek => false,
        Op::Check => is_log(charge.limit) && charge.kind == ChargeKind::Overdraft,
        Op::Charge | Op::Refund { .. } => is_log(charge.limit) || charge.is_look(),
    }
}

/// Applies `op` to the first of these states or, if the charge has guarantees, to the first ones.
fn apply_to_states(op: Op, charge: &Charge<'_>, states: &mut [Snapshot], now: Micros) -> Decision {
    let Some(limit) = charge.class else { return states[0].apply(op, charge, now) };
    let states = &mut states[..limit.buckets().len()];
    let mut cells = buckets_of(states, now);
    let decision = apply_to_buckets(op, limit, charge, &mut cells);
    for (state, next) in states.iter_mut().zip(cells) {
        *state = Snapshot::Cell(next.cell);
    }
    decision
}

fn buckets_of(states: &[Snapshot], now: Micros) -> Vec<BucketCell> {
    let cell_of = |state: &Snapshot| match state {
        Snapshot::Cell(cell) => *cell,
        Snapshot::Log(_) => Cell::EMPTY, // the state of another algorithm does not apply
    };
    states.iter().map(|state| BucketCell { cell: cell_of(state), now }).collect()
}

fn is_denial(op: Op, decision: &Decision) -> bool {
    matches!(op, Op::Check | Op::Peek) && !decision.allowed()
}

/// Returns the first of these states or, if the charge has guarantees, the first ones.
fn state_of(charge: &Charge<'_>, states: &[Snapshot], now: Micros) -> StateBefore {
    match charge.class {
        None => StateBefore::Own(states[0].clone()),
        Some(limit) => StateBefore::Buckets(buckets_of(&states[..limit.buckets().len()], now)),
    }
}

/// Returns when a state is equivalent to none.
fn expires_at(state: &Snapshot, limit: &Limit, now: Micros) -> u64 {
    match (state, limit.evaluator()) {
        (Snapshot::Cell(cell), _) => cell.expires_at(),
        (Snapshot::Log(log), Evaluator::Log(rule)) => rule.expires_at(log),
        (Snapshot::Log(_), Evaluator::Cell(_)) => now.get(),
    }
}

fn is_log(limit: &Limit) -> bool {
    matches!(limit.evaluator(), Evaluator::Log(_))
}

/// Parses the reply of `read.lua`: the time and the states.
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
