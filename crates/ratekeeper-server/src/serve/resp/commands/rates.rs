//! Commands of our own, for every algorithm: `RK.CHECK` and its like.

use ratekeeper::{Algorithm, Cost, Op};

use super::numbers::whole;
use super::{Command, Handler, quote};
use crate::serve::resp::codec::Args;
use crate::serve::resp::limits::{Asked, Limits};
use crate::serve::resp::rate_command::{Action, RateCommand, ReplyFormat};

const USAGE: &str = "key rate [ALGORITHM name] [COST n] [NAME name]";

const fn command(name: &'static str, summary: &'static str, handler: Handler) -> Command {
    Command { name, args: 3..=9, usage: USAGE, summary, is_for_strangers: false, handler }
}

pub(super) const CHECK: Command = command(
    "RK.CHECK",
    "Charges if it fits.",
    Handler::Key(|args, limits| read(Action::Apply(Op::Check), args, limits)),
);

pub(super) const PEEK: Command = command(
    "RK.PEEK",
    "Says what a check would say, and changes nothing.",
    Handler::Key(|args, limits| read(Action::Apply(Op::Peek), args, limits)),
);

pub(super) const CHARGE: Command = command(
    "RK.CHARGE",
    "Charges whether it fits or not; what does not fit is a debt.",
    Handler::Key(|args, limits| read(Action::Apply(Op::Charge), args, limits)),
);

pub(super) const REFUND: Command = command(
    "RK.REFUND",
    "Gives back what was charged a moment ago.",
    Handler::Key(|args, limits| read(Action::Apply(Op::refund_latest()), args, limits)),
);

pub(super) const RESET: Command = Command {
    args: 3..=7,
    usage: "key rate [ALGORITHM name] [NAME name]",
    ..command(
        "RK.RESET",
        "Makes the key as good as new.",
        Handler::Key(|args, limits| read(Action::Reset, args, limits)),
    )
};

fn read<'a>(
    action: Action,
    args: Args<'a>,
    limits: &'a mut Limits,
) -> Result<RateCommand<'a>, String> {
    let mut asked = Asked { rate: args.at(2), algorithm: None, name: None };
    let mut cost = Cost::ONE;
    let mut at = 3;
    while let Some(option) = args.get(at) {
        let value = args.get(at + 1);
        let value = value.ok_or_else(|| format!("'{}' needs a value", quote(option)))?;
        match () {
            () if option.eq_ignore_ascii_case(b"ALGORITHM") => {
                asked.algorithm = Some(read_algorithm(value)?);
            }
            () if option.eq_ignore_ascii_case(b"NAME") => asked.name = Some(value),
            () if option.eq_ignore_ascii_case(b"COST") && action != Action::Reset => {
                cost = read_cost(value)?;
            }
            () => return Err(unknown_option(action, option)),
        }
        at += 2;
    }
    let limit = limits.rate(asked)?;
    Ok(RateCommand { action, limit, key: args.at(1), cost, format: ReplyFormat::Named })
}

fn read_algorithm(text: &[u8]) -> Result<Algorithm, String> {
    let name = quote(text).to_ascii_lowercase();
    name.parse().map_err(|error: ratekeeper_core::LimitError| error.to_string())
}

fn read_cost(text: &[u8]) -> Result<Cost, String> {
    Cost::try_from(whole("the cost", text)?).map_err(|error| error.to_string())
}

fn unknown_option(action: Action, option: &[u8]) -> String {
    let options = match action {
        Action::Reset => "ALGORITHM and NAME",
        _ => "ALGORITHM, COST and NAME",
    };
    format!("syntax error: unknown option '{}'; there is {options}", quote(option))
}
