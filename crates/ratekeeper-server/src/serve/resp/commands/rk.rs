//! `RK.CHECK` and the other commands of Ratekeeper, which support every algorithm.

use ratekeeper::{Algorithm, Cost, MaxDebt, Op};

use super::integer::parse_u64;
use super::{CommandError, CommandSpec, Handler, quote};
use crate::serve::resp::codec::Args;
use crate::serve::resp::command_limits::CommandLimits;
use crate::serve::resp::rate_command::{Action, RateCommand, ReplyFormat};

const USAGE: &str = "key rate [ALGORITHM name] [COST n] [NAME name] [OVERDRAFT] [MAXDEBT n|nx]";

const fn command(name: &'static str, summary: &'static str, handler: Handler) -> CommandSpec {
    CommandSpec { name, args: 3..=12, usage: USAGE, summary, before_auth: false, handler }
}

pub(super) const CHECK: CommandSpec = command(
    "RK.CHECK",
    "Charges the cost if the limit allows it.",
    Handler::Rate(|args, limits| parse(Action::Apply(Op::Check), args, limits)),
);

pub(super) const PEEK: CommandSpec = command(
    "RK.PEEK",
    "Returns the decision of a check without charging anything.",
    Handler::Rate(|args, limits| parse(Action::Apply(Op::Peek), args, limits)),
);

pub(super) const CHARGE: CommandSpec = command(
    "RK.CHARGE",
    "Charges the cost even if it exceeds the limit; the excess is a debt.",
    Handler::Rate(|args, limits| parse(Action::Apply(Op::Charge), args, limits)),
);

pub(super) const REFUND: CommandSpec = command(
    "RK.REFUND",
    "Refunds a cost that was charged recently.",
    Handler::Rate(|args, limits| parse(Action::Apply(Op::refund_latest()), args, limits)),
);

pub(super) const RESET: CommandSpec = CommandSpec {
    args: 3..=7,
    usage: "key rate [ALGORITHM name] [NAME name]",
    ..command(
        "RK.RESET",
        "Deletes the usage of the key.",
        Handler::Rate(|args, limits| parse(Action::Reset, args, limits)),
    )
};

fn parse<'a>(
    action: Action,
    args: Args<'a>,
    limits: &'a mut CommandLimits,
) -> Result<RateCommand<'a>, CommandError> {
    let (mut algorithm, mut name, mut cost) = (None, None, Cost::ONE);
    let mut overdraft = None;
    let mut index = 3;
    while let Some(option) = args.get(index) {
        if option.eq_ignore_ascii_case(b"OVERDRAFT") && action != Action::Reset {
            overdraft = overdraft.or(Some(MaxDebt::NONE));
            index += 1;
            continue;
        }
        let value = args.get(index + 1);
        let value = value.ok_or_else(|| CommandError::MissingValue(quote(option)))?;
        if option.eq_ignore_ascii_case(b"ALGORITHM") {
            algorithm = Some(parse_algorithm(value)?);
        } else if option.eq_ignore_ascii_case(b"NAME") {
            name = Some(value);
        } else if option.eq_ignore_ascii_case(b"COST") && action != Action::Reset {
            cost = Cost::try_from(parse_u64("the cost", value)?)?;
        } else if option.eq_ignore_ascii_case(b"MAXDEBT") && action != Action::Reset {
            overdraft =
                Some(quote(value).parse().map_err(|_| CommandError::MaxDebt(quote(value)))?);
        } else {
            return Err(unknown_option(action, option));
        }
        index += 2;
    }
    let limit = limits.rate(args.at(2), algorithm, name)?;
    Ok(RateCommand { action, limit, key: args.at(1), cost, overdraft, format: ReplyFormat::Named })
}

pub(super) fn parse_algorithm(text: &[u8]) -> Result<Algorithm, CommandError> {
    let name = quote(text).to_ascii_lowercase();
    name.parse().map_err(CommandError::UnknownAlgorithm)
}

fn unknown_option(action: Action, option: &[u8]) -> CommandError {
    let known = match action {
        Action::Reset => "ALGORITHM or NAME",
        Action::Apply(_) => "ALGORITHM, COST, NAME, OVERDRAFT or MAXDEBT",
    };
    CommandError::UnknownOption { option: quote(option), known }
}
