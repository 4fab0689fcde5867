//! What an option may be, taken from the lists that the library keeps.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error, ValueEnum};
use ipnet::IpNet;
use ratekeeper_core::{ALGORITHMS, Algorithm, LimitError, Rate};
use ratekeeper_lab::{PATTERNS, Pattern};

/// For whom to print.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// One JSON document
    Json,
}

/// One algorithm, or all of them side by side.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Choice {
    One(Algorithm),
    All,
}

/// Parses the value of `--algorithm`.
#[derive(Clone)]
pub(crate) struct ChoiceParser;

impl TypedValueParser for ChoiceParser {
    type Value = Choice;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Choice, Error> {
        if value == "concurrency" {
            let why = "concurrency cannot be simulated: it depends on how long requests take, and a trace only says when they arrive\n";
            return Err(Error::raw(ErrorKind::InvalidValue, why).with_cmd(command));
        }
        let parse = |name: String| match name.as_str() {
            "all" => Ok::<_, LimitError>(Choice::All),
            name => name.parse().map(Choice::One),
        };
        let names = PossibleValuesParser::new(choice_values());
        names.try_map(parse).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(choice_values()))
    }
}

fn choice_values() -> impl Iterator<Item = PossibleValue> {
    let one = ALGORITHMS.iter().map(|algorithm| {
        let value = PossibleValue::new(algorithm.name()).help(describe_algorithm(*algorithm));
        if *algorithm == Algorithm::TokenBucket { value.alias("gcra") } else { value }
    });
    one.chain([PossibleValue::new("all").help("All of them, side by side")])
}

fn describe_algorithm(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => "A counter per window; up to twice the limit around a boundary",
        Algorithm::SlidingLog => "Remembers every request; never more than the limit in a period",
        Algorithm::SlidingCounter => "Two counters per key; smooth, assumes even past arrivals",
        Algorithm::TokenBucket => "A burst, then a steady rate (also known as gcra)",
        Algorithm::LeakyBucket => "A queue: admits like a token bucket, lets out evenly spaced",
    }
}

/// Parses the value of `--traffic`.
pub(crate) fn pattern_parser() -> impl TypedValueParser<Value = Pattern> {
    let values = PATTERNS
        .iter()
        .map(|pattern| PossibleValue::new(pattern.name()).help(describe_pattern(*pattern)));
    PossibleValuesParser::new(values).try_map(|name| {
        let known = PATTERNS.iter().find(|pattern| pattern.name() == name);
        known.copied().ok_or("unknown traffic")
    })
}

fn describe_pattern(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Steady => "Evenly spaced",
        Pattern::Burst => "What comes in three periods all at once, then quiet",
        Pattern::Boundary => "The whole limit just before a window turns, and again just after",
        Pattern::Poisson => "Independent callers: random gaps",
        Pattern::FlashSale => {
            "Calm, but for a third of the time one \"partner\" at 40 times the rate"
        }
    }
}

/// What is wrong with the first argument that is a rate below zero. Such a one begins with a hyphen
/// and would be taken for a mistyped option.
pub(crate) fn negative_rate(args: impl Iterator<Item = OsString>) -> Option<String> {
    let is_negative =
        |arg: &String| arg.starts_with('-') && arg[1..].starts_with(|c: char| c.is_ascii_digit());
    let mut args = args.filter_map(|arg| arg.into_string().ok());
    let rate = args.find(|arg| is_negative(arg) && (arg.contains('/') || arg.contains(" per ")))?;
    rate.parse::<Rate>().err().map(|error| error.to_string())
}

/// Parses a span such as `10s` or `2m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    ratekeeper_core::parse_duration(text).map_err(|error| error.message().to_string())
}

/// Where to listen, if at all.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) Option<SocketAddr>);

/// Parses an address and a port, or "off".
pub(crate) fn address(text: &str) -> Result<Address, String> {
    match text {
        "off" => Ok(Address(None)),
        _ => text.parse().map(|address| Address(Some(address))).map_err(|_| {
            "not an address and a port such as 127.0.0.1:9091, and not \"off\"".to_string()
        }),
    }
}

/// Parses a network, or one address.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let one = || text.parse().map(|ip: std::net::IpAddr| IpNet::from(ip));
    text.parse().or_else(|_| one()).map_err(|_| "not a network such as 10.0.0.0/8".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trusted_proxy_is_a_network_or_an_address() {
        assert!(network("10.0.0.0/8").is_ok() && network("::1").is_ok());
        assert!(network("10.0.0.0/33").is_err() && network("proxy").is_err());
    }
}
