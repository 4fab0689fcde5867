//! `CL.THROTTLE`, compatible with redis-cell.
//!
//! A quantity above `max_burst + 1` can never be allowed: it is denied with a retry of -1, as in redis-cell.
//! What differs: a negative quantity is an error, and rates that redis-cell rounds or rejects are exact.

use ratekeeper::{Cost, Op};

use super::integer::parse_u64;
use super::{CommandError, CommandSpec, Handler};
use crate::serve::resp::codec::Args;
use crate::serve::resp::command_limits::{CommandLimits, ThrottleSpec};
use crate::serve::resp::rate_command::{Action, RateCommand, ReplyFormat};

pub(super) const CL_THROTTLE: CommandSpec = CommandSpec {
    name: "CL.THROTTLE",
    args: 5..=6,
    usage: "key max_burst count period [quantity]",
    summary: "Charges a token bucket if the limit allows it: limited, limit, remaining, seconds until retry, seconds until full.",
    before_auth: false,
    handler: Handler::Rate(throttle),
};

#[inline]
fn throttle<'a>(
    args: Args<'a>,
    limits: &'a mut CommandLimits,
) -> Result<RateCommand<'a>, CommandError> {
    let spec = ThrottleSpec {
        max_burst: parse_u64("max_burst", args.at(2))?,
        count: parse_u64("count", args.at(3))?,
        period_s: parse_u64("period", args.at(4))?,
    };
    let quantity = args.get(5).map_or(Ok(1), |text| parse_u64("quantity", text))?;
    let limit = limits.throttle(spec)?;
    let (action, cost, format) = match Cost::new(quantity) {
        Some(cost) => (Action::Apply(Op::Check), cost, ReplyFormat::Throttle),
        None => (Action::Apply(Op::Peek), Cost::ONE, ReplyFormat::ThrottlePeek),
    };
    Ok(RateCommand { action, limit, key: args.at(1), cost, overdraft: None, format })
}
