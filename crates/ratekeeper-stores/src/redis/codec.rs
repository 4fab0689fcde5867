//! The encoding of numbers and states in scripts: big-endian, in as few bytes as they need.

use ratekeeper_core::{
    BucketCell, Cost, Decision, Evaluator, GuaranteedLimit, Limit, LimitParams, Micros, RequestLog,
};

use crate::charge::{Charge, ChargeKind};
use crate::decision_inputs::StateBefore;
use crate::snapshot::Snapshot;
use crate::store::{Op, UsageOp};

/// No number in a script is larger.
const NUMBER_MAX: u64 = (1 << 53) - 1;
/// No count of a sliding counter is larger.
const COUNTER_MAX: u64 = (1 << 26) - 1;

/// Numbers of the given lengths in bytes, one after the other.
fn pack(into: &mut Vec<u8>, numbers: &[(u64, usize)]) {
    for (n, len) in numbers {
        into.extend_from_slice(&n.to_be_bytes()[8 - len..]);
    }
}

/// The number in the first `len` bytes, and the rest.
fn take(bytes: &[u8], len: usize) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_at_checked(len)?;
    Some((number.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)), rest))
}

/// Numbers of the given lengths, which must be all there is.
fn unpack<const N: usize>(mut bytes: &[u8], lens: [usize; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, len) in numbers.iter_mut().zip(lens) {
        (*number, bytes) = take(bytes, len)?;
    }
    bytes.is_empty().then_some(numbers)
}

/// The letter of what a script does to a charge (`head.lua`, `mixed.lua`).
pub(super) fn letter(op: Op, charge: &Charge<'_>) -> u8 {
    match op.on(charge).0 {
        UsageOp::Check if charge.class.is_some() => CHECK_GUARANTEED,
        UsageOp::Peek if charge.class.is_some() => PEEK_GUARANTEED,
        UsageOp::Check => b'c',
        UsageOp::Peek if charge.kind == ChargeKind::Full => b'p',
        UsageOp::Peek => LOOK,
        UsageOp::Charge { .. } if debt_params(charge).is_empty() => b'f',
        UsageOp::Charge { .. } => CHARGE_UP_TO,
        UsageOp::Overdraw { .. } if debt_params(charge).is_empty() => OVERDRAW,
        UsageOp::Overdraw { .. } => OVERDRAW_UP_TO,
        UsageOp::Refund { .. } => b'r',
    }
}

const LOOK: u8 = b'l';
const CHARGE_UP_TO: u8 = b'F';
const OVERDRAW: u8 = b'o';
const OVERDRAW_UP_TO: u8 = b'O';
const CHECK_GUARANTEED: u8 = b'g';
const PEEK_GUARANTEED: u8 = b'G';

/// Whether a letter needs `mixed.lua`, also if all charges have it.
pub(super) fn is_mixed(letter: u8) -> bool {
    let has_cost_of_one = matches!(letter, LOOK | OVERDRAW | OVERDRAW_UP_TO);
    has_cost_of_one || matches!(letter, CHECK_GUARANTEED | PEEK_GUARANTEED)
}

/// Encodes the parameters of a charge to a limit with guarantees, as `guaranteed.lua` reads them.
pub(super) fn encode_guaranteed(
    into: &mut Vec<u8>,
    op: Op,
    charge: &Charge<'_>,
    limit: &GuaranteedLimit,
) {
    let cost = op.on(charge).1;
    let params = limit.params(cost);
    let count = params.weights.len() as u64;
    let mut push = |params: Vec<u8>| {
        into.push(params.len() as u8);
        into.extend(params);
    };
    let mut header = vec![b'g'];
    pack(&mut header, &[(count, 1), (params.own, 1), (params.needed, 7)]);
    push(header);
    for (usage, weight) in charge.cost(cost).usages().zip(params.weights) {
        let mut bucket = encode_params(&usage, b'c', Micros::new(0)); // a bucket has no calendar
        pack(&mut bucket, &[(weight, 7)]);
        push(bucket);
    }
}

/// Encodes the parameters of a charge under a letter, each part prefixed with its length.
pub(super) fn encode_parts(into: &mut Vec<u8>, charge: &Charge<'_>, letter: u8, now: Micros) {
    let mut push = |params: Vec<u8>| {
        into.push(params.len() as u8);
        into.extend(params);
    };
    if is_mixed(letter) {
        push(encode_params(&charge.cost(Cost::ONE), b'p', now));
    }
    if letter != LOOK {
        push(encode_params(charge, letter, now));
    }
}

/// The numbers of a maximum debt: the highest usage that it allows. Empty if there is none, or if it
/// exceeds all usage that a state can hold.
fn debt_params(charge: &Charge<'_>) -> Vec<(u64, usize)> {
    let usage_max = |limit: u64| limit.saturating_add(charge.debt_max);
    match charge.limit.params(Cost::ONE) {
        LimitParams::FixedWindow { limit, .. } | LimitParams::CalendarWindow { limit, .. }
            if usage_max(limit) < NUMBER_MAX =>
        {
            vec![(usage_max(limit), 7)]
        }
        LimitParams::SlidingCounter { limit, .. } if usage_max(limit) < COUNTER_MAX => {
            vec![(usage_max(limit), 7)]
        }
        LimitParams::Gcra { .. } => {
            let rule = charge.limit.cell_evaluator();
            let tolerance = rule.and_then(|rule| rule.debt_tolerance(charge.debt_max));
            tolerance.map_or(Vec::new(), |tolerance| vec![(tolerance.us, 7), (tolerance.frac, 4)])
        }
        _ => Vec::new(),
    }
}

/// Encodes the parameters of a charge: a letter for the algorithm, and its numbers. Under some letters a
/// maximum debt follows. Windows of the calendar are those around `now`.
pub(super) fn encode_params(charge: &Charge<'_>, letter: u8, now: Micros) -> Vec<u8> {
    let cost = charge.cost.get().min(NUMBER_MAX);
    let mut packed = Vec::with_capacity(48);
    match charge.limit.params(charge.cost) {
        LimitParams::FixedWindow { window_us, limit, ttl_code } => {
            packed.push(b'w');
            pack(&mut packed, &[(window_us, 7), (limit, 7), (cost, 7), (ttl_code, 2)]);
        }
        LimitParams::CalendarWindow { limit, ttl_code } => {
            packed.push(b'd');
            let bounds = charge.limit.calendar_bounds(now).unwrap_or_default();
            pack(&mut packed, &bounds.map(|bound| (bound, 7)));
            pack(&mut packed, &[(limit, 7), (cost, 7), (ttl_code, 2)]);
        }
        LimitParams::SlidingCounter { window_us, limit, ttl_code } => {
            let is_small = limit.checked_mul(window_us).is_some_and(|n| n <= NUMBER_MAX);
            packed.push(b'c');
            let numbers =
                [(window_us, 7), (limit, 7), (cost, 7), (ttl_code, 2), (is_small.into(), 1)];
            pack(&mut packed, &numbers);
        }
        LimitParams::Gcra { denominator, rate_code, increment, burst_tolerance } => {
            packed.push(b'b');
            pack(
                &mut packed,
                &[(1 << scale_bits(denominator), 4), (rate_code, 4), (denominator, 4)],
            );
            let tolerance = [(burst_tolerance.us, 7), (burst_tolerance.frac, 4)];
            pack(&mut packed, &[(increment.us, 7), (increment.frac, 4)]);
            pack(&mut packed, &tolerance);
        }
        LimitParams::SlidingLog { window_us, limit, count_rejected } => {
            packed.push(b'l');
            let numbers = [(window_us, 7), (limit, 7), (cost, 7), (count_rejected.into(), 1)];
            pack(&mut packed, &numbers);
        }
    }
    if matches!(letter, CHARGE_UP_TO | OVERDRAW_UP_TO) {
        pack(&mut packed, &debt_params(charge));
    }
    packed
}

/// The size in bits of the fraction of a TAT: none, a few, or all it may need.
fn scale_bits(count: u64) -> u32 {
    match count {
        1 => 0,
        2..=8192 => 13,
        _ => 26,
    }
}

/// Encodes a state under this limit.
pub(super) fn encode_state(state: &Snapshot, limit: &Limit) -> Vec<u8> {
    let cell = match state {
        Snapshot::Log(log) => return log.to_bytes(),
        Snapshot::Cell(cell) => *cell,
    };
    let [time, life, upper, lower] = cell.to_parts();
    let mut packed = Vec::with_capacity(20);
    match limit.params(Cost::ONE) {
        LimitParams::FixedWindow { .. } | LimitParams::CalendarWindow { .. } => {
            pack(&mut packed, &[(time, 7), (life, 2), (upper << 26 | lower, 7)]);
        }
        LimitParams::SlidingCounter { .. } => {
            pack(&mut packed, &[(time, 7), (life, 2), (upper, 4), (lower, 4)]);
        }
        LimitParams::Gcra { denominator, .. } => {
            let bits = scale_bits(denominator);
            let len = match bits {
                0 => 4,
                13 => 5,
                _ => 7,
            };
            pack(&mut packed, &[(time, 7), (upper << bits | lower, len)]);
        }
        LimitParams::SlidingLog { .. } => {}
    }
    packed
}

/// Decodes a state. `None` if it is invalid.
pub(super) fn decode_state(bytes: &[u8], limit: &Limit) -> Option<Snapshot> {
    if bytes.is_empty() {
        return Some(Snapshot::fresh(limit));
    }
    let parts = match limit.params(Cost::ONE) {
        LimitParams::FixedWindow { .. } | LimitParams::CalendarWindow { .. } => {
            let [time, life, count] = unpack(bytes, [7, 2, 7])?;
            [time, life, count >> 26, count & ((1 << 26) - 1)]
        }
        LimitParams::SlidingCounter { .. } => unpack(bytes, [7, 2, 4, 4])?,
        // It may have been written under another rate, with more or fewer bits.
        LimitParams::Gcra { .. } => {
            let (len, bits) = match bytes.len() {
                11 => (4, 0),
                12 => (5, 13),
                _ => (7, 26),
            };
            let [time, data] = unpack(bytes, [7, len])?;
            [time, 0, data >> bits, data & ((1 << bits) - 1)]
        }
        LimitParams::SlidingLog { .. } => return RequestLog::from_bytes(bytes).map(Snapshot::Log),
    };
    limit.cell_evaluator().map(|rule| Snapshot::Cell(rule.cell_from_parts(parts)))
}

/// The outcome of a script for all charges together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptOutcome {
    Denied,
    Fits,
    /// A state was written under another limit.
    OtherLimit,
    /// The server's time is in no window of the calendar that the script was called with.
    NoWindow,
}

/// Decodes the reply of a script: the outcome, the time, and the state of each charge.
pub(super) fn decode_reply(reply: &[u8]) -> Option<(ScriptOutcome, Micros, &[u8])> {
    let (outcome, rest) = take(reply, 1)?;
    let (now, states) = take(rest, 7)?;
    let outcome = match outcome {
        0 => ScriptOutcome::Denied,
        1 => ScriptOutcome::Fits,
        2 => ScriptOutcome::OtherLimit,
        3 => ScriptOutcome::NoWindow,
        _ => return None,
    };
    Some((outcome, Micros::new(now), states))
}

/// Splits off the state of the first of several charges.
pub(super) fn split_state(states: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = take(states, 1)?;
    rest.split_at_checked(len as usize)
}

/// Computes the decision on one charge from its state before. `is_charged` if all charges fitted and
/// were written.
pub(super) fn decide(
    states: &[u8],
    charge: &Charge<'_>,
    op: Op,
    is_charged: bool,
    now: Micros,
) -> Option<Decision> {
    let op = if is_charged { op } else { Op::Peek };
    if let Evaluator::Log(rule) = charge.limit.evaluator() {
        let [used, newest, seen, wait_us] = unpack(states, [7, 7, 7, 7])?;
        let (usage_op, cost) = op.on(charge);
        let (used, newest) = match usage_op {
            UsageOp::Peek => (used, newest),
            _ => (used.saturating_add(cost.get()), seen),
        };
        return Some(rule.decision(used, newest, wait_us, cost, now));
    }
    let mut state = decode_state(states, charge.limit)?;
    Some(state.apply(op, charge, now))
}

/// Returns the state that [`decide`] computes a denial from.
pub(super) fn state_before(states: &[u8], charge: &Charge<'_>) -> Option<StateBefore> {
    if matches!(charge.limit.evaluator(), Evaluator::Log(_)) {
        let [used, newest_us, _, wait_us] = unpack(states, [7, 7, 7, 7])?;
        return Some(StateBefore::LogSummary { used, newest_us, wait_us });
    }
    decode_state(states, charge.limit).map(StateBefore::Own)
}

/// Decodes the states of a total and its guarantees. `None` if one is invalid.
pub(super) fn decode_buckets<'s>(
    charge: &Charge<'_>,
    states: impl Iterator<Item = &'s [u8]>,
    now: Micros,
) -> Option<Vec<BucketCell>> {
    let decode = |(usage, bytes): (Charge<'_>, &[u8])| match decode_state(bytes, usage.limit)? {
        Snapshot::Cell(cell) => Some(BucketCell { cell, now }),
        Snapshot::Log(_) => None,
    };
    charge.usages().zip(states).map(decode).collect()
}
