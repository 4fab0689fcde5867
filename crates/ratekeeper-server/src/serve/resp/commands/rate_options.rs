//! The options of commands that name a rate.

use ratekeeper::{Algorithm, Cost, MaxDebt};

use super::integer::parse_u64;
use super::{CommandError, quote};
use crate::serve::resp::codec::Args;

/// What the options of a command say.
pub(super) struct RateOptions<'a> {
    pub(super) algorithm: Option<Algorithm>,
    pub(super) name: Option<&'a [u8]>,
    pub(super) cost: Cost,
    pub(super) overdraft: Option<MaxDebt>,
    pub(super) valid_ms: Option<u64>,
}

impl<'a> RateOptions<'a> {
    /// Parses the options from the fourth argument on. `known` lists their names, as for a message.
    pub(super) fn parse(args: Args<'a>, known: &'static str) -> Result<Self, CommandError> {
        let mut options =
            Self { algorithm: None, name: None, cost: Cost::ONE, overdraft: None, valid_ms: None };
        let mut index = 3;
        while let Some(option) = args.get(index) {
            index += options.set(option, args.get(index + 1), known)?;
        }
        Ok(options)
    }

    /// Sets an option. Returns how many arguments it has taken.
    fn set(
        &mut self,
        option: &[u8],
        value: Option<&'a [u8]>,
        known: &'static str,
    ) -> Result<usize, CommandError> {
        let mut names = known.split([',', ' ']).filter(|word| !matches!(*word, "" | "or"));
        let name = names.find(|name| name.as_bytes().eq_ignore_ascii_case(option));
        let name =
            name.ok_or_else(|| CommandError::UnknownOption { option: quote(option), known })?;
        if name == "OVERDRAFT" {
            self.overdraft = self.overdraft.or(Some(MaxDebt::NONE));
            return Ok(1);
        }
        let value = value.ok_or_else(|| CommandError::MissingValue(quote(option)))?;
        match name {
            "ALGORITHM" => self.algorithm = Some(parse_algorithm(value)?),
            "COST" => self.cost = Cost::try_from(parse_u64("the cost", value)?)?,
            "NAME" => self.name = Some(value),
            "MAXDEBT" => self.overdraft = Some(parse_max_debt(value)?),
            _ => self.valid_ms = Some(parse_u64("the valid time", value)?),
        }
        Ok(2)
    }
}

fn parse_algorithm(text: &[u8]) -> Result<Algorithm, CommandError> {
    let name = quote(text).to_ascii_lowercase();
    name.parse().map_err(CommandError::UnknownAlgorithm)
}

fn parse_max_debt(text: &[u8]) -> Result<MaxDebt, CommandError> {
    quote(text).parse().map_err(|_| CommandError::MaxDebt(quote(text)))
}
