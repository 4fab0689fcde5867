//! Which script decides on some charges, and its arguments.

use ratekeeper_core::Micros;

use super::codec;
use super::script::LuaScript;
use crate::charge::Charge;
use crate::store::Op;

pub(super) struct ScriptCall {
    pub(super) script: &'static LuaScript,
    /// What to do with the charges: a letter for all of them or, if they differ, one for each.
    letters: Vec<u8>,
    params: Vec<u8>,
    /// Whether parameters and states have their lengths before them.
    has_lengths: bool,
}

impl ScriptCall {
    /// Windows of the calendar are those around `now`.
    pub(super) fn new(op: Op, charges: &[Charge<'_>], now: Micros) -> Self {
        let letters: Vec<u8> = charges.iter().map(|charge| codec::letter(op, charge)).collect();
        let limit_params = charges.iter().map(|charge| charge.limit.params(charge.cost));
        let params_of =
            |charge: &Charge<'_>| charge.class.is_none().then(|| charge.limit.params(charge.cost));
        let is_uniform = letters.iter().all(|letter| *letter == letters[0]);
        let mut params = Vec::new();
        let (script, letters) = match (charges, &letters[..]) {
            (_, [first, ..]) if !is_uniform || codec::is_mixed(*first) => {
                (LuaScript::for_mixed(charges.iter().map(params_of)), letters)
            }
            ([one], [letter]) => {
                params = codec::encode_params(one, *letter, now);
                let script = LuaScript::for_one(&one.limit.params(one.cost));
                return Self { script, letters, params, has_lengths: false };
            }
            ([one, two], _) => {
                let (one, two) = (one.limit.params(one.cost), two.limit.params(two.cost));
                (LuaScript::for_two(&one, &two), letters[..1].to_vec())
            }
            _ => (LuaScript::for_several(limit_params), letters[..1].to_vec()),
        };
        for charge in charges {
            match charge.class {
                Some(limit) => codec::encode_guaranteed(&mut params, op, charge, limit),
                None => codec::encode_parts(&mut params, charge, codec::letter(op, charge), now),
            }
        }
        Self { script, letters, params, has_lengths: true }
    }

    /// The arguments of the script at this time, as `head.lua` describes them.
    pub(super) fn args(&self, time: Vec<u8>, op: Op) -> Vec<Vec<u8>> {
        let mut args = vec![time, self.letters.clone(), self.params.clone()];
        if let Op::Refund { charged_at } = op {
            args.push(decimal(charged_at));
        }
        args
    }

    /// Splits the state of the first charge off those that the script returned.
    pub(super) fn split_state<'r>(&self, states: &'r [u8]) -> Option<(&'r [u8], &'r [u8])> {
        match self.has_lengths {
            true => codec::split_state(states),
            false => Some((states, &[])),
        }
    }
}

fn decimal(time: Micros) -> Vec<u8> {
    time.get().to_string().into_bytes()
}
