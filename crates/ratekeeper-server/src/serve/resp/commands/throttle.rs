//! `CL.THROTTLE`, as redis-cell has it.
//!
//! A quantity above `max_burst + 1` is denied for good: it is answered with a retry of -1, which
//! otherwise means that it was allowed. What differs: a negative quantity is an error, and rates that
//! redis-cell rounds or refuses are exact.

use ratekeeper::{Cost, Op};

use super::numbers::whole;
use super::{Command, Handler};
use crate::serve::resp::codec::Args;
use crate::serve::resp::limits::{Limits, Throttle};
use crate::serve::resp::rate_command::{Action, RateCommand, ReplyFormat};

pub(super) const CL_THROTTLE: Command = Command {
    name: "CL.THROTTLE",
    args: 5..=6,
    usage: "key max_burst count period [quantity]",
    summary: "Charges a token bucket if it fits: limited, limit, remaining, seconds until retry, seconds until full.",
    is_for_strangers: false,
    handler: Handler::Key(throttle),
};

#[inline]
fn throttle<'a>(args: Args<'a>, limits: &'a mut Limits) -> Result<RateCommand<'a>, String> {
    let numbers = Throttle {
        max_burst: whole("max_burst", args.at(2))?,
        count: whole("count", args.at(3))?,
        period_s: whole("period", args.at(4))?,
    };
    let quantity = args.get(5).map_or(Ok(1), |text| whole("quantity", text))?;
    let limit = limits.throttle(numbers)?;
    let (action, cost, format) = match Cost::new(quantity) {
        Some(cost) => (Action::Apply(Op::Check), cost, ReplyFormat::Throttle),
        None => (Action::Apply(Op::Peek), Cost::ONE, ReplyFormat::ThrottlePeek),
    };
    Ok(RateCommand { action, limit, key: args.at(1), cost, format })
}
