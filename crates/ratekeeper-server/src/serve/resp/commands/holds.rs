//! `RK.RESERVE`, `RK.SETTLE`, `RK.ACQUIRE` and `RK.RELEASE`: reservations and permits, which every server that
//! shares the store can settle and release.

use std::time::Duration;

use ratekeeper::HoldId;

use super::integer::parse_u64;
use super::rate_options::RateOptions;
use super::{CommandError, CommandSpec, Handler};
use crate::serve::hold_time::hold_time;
use crate::serve::resp::codec::Args;
use crate::serve::resp::command_limits::CommandLimits;
use crate::serve::resp::hold_command::HoldCommand;

pub(super) const RESERVE: CommandSpec = CommandSpec {
    name: "RK.RESERVE",
    args: 3..=12,
    usage: "key rate [ALGORITHM name] [COST n] [NAME name] [OVERDRAFT] [VALID ms]",
    summary: "Charges an estimated cost, and returns the id of a reservation to settle.",
    before_auth: false,
    handler: Handler::Hold(reserve),
};

pub(super) const SETTLE: CommandSpec = CommandSpec {
    name: "RK.SETTLE",
    args: 3..=3,
    usage: "reservation cost",
    summary: "Corrects the charge of a reservation to the actual cost, once.",
    before_auth: false,
    handler: Handler::Hold(settle),
};

pub(super) const ACQUIRE: CommandSpec = CommandSpec {
    name: "RK.ACQUIRE",
    args: 3..=7,
    usage: "key max [NAME name] [VALID ms]",
    summary: "Returns one of max permits to be in flight.",
    before_auth: false,
    handler: Handler::Hold(acquire),
};

pub(super) const RELEASE: CommandSpec = CommandSpec {
    name: "RK.RELEASE",
    args: 2..=2,
    usage: "permit",
    summary: "Releases a permit.",
    before_auth: false,
    handler: Handler::Hold(|args, _| Ok(HoldCommand::Release { id: parse_id(args.at(1))? })),
};

fn reserve(args: Args<'_>, limits: &mut CommandLimits) -> Result<HoldCommand, CommandError> {
    let known = "ALGORITHM, COST, NAME, OVERDRAFT or VALID";
    let RateOptions { algorithm, name, cost, overdraft, valid_ms } =
        RateOptions::parse(args, known)?;
    let limit = limits.rate(args.at(2), algorithm, name)?.clone();
    let (key, valid) = (args.at(1).into(), valid_time(valid_ms)?);
    Ok(HoldCommand::Reserve { limit, key, estimate: cost, overdraft, valid })
}

fn settle(args: Args<'_>, _: &mut CommandLimits) -> Result<HoldCommand, CommandError> {
    let actual = parse_u64("the cost", args.at(2))?;
    Ok(HoldCommand::Settle { id: parse_id(args.at(1))?, actual })
}

fn acquire(args: Args<'_>, limits: &mut CommandLimits) -> Result<HoldCommand, CommandError> {
    let RateOptions { name, valid_ms, .. } = RateOptions::parse(args, "NAME or VALID")?;
    let max = parse_u64("the number of permits", args.at(2))?;
    if max == 0 {
        return Err(CommandError::NoPermits);
    }
    let (name, key) = (limits.permit_name(name)?, args.at(1).into());
    Ok(HoldCommand::Acquire { name, key, max, valid: valid_time(valid_ms)? })
}

fn parse_id(text: &[u8]) -> Result<HoldId, CommandError> {
    let id = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    id.ok_or(CommandError::HoldId)
}

fn valid_time(valid_ms: Option<u64>) -> Result<Duration, CommandError> {
    hold_time(valid_ms).ok_or(CommandError::HoldTime)
}
