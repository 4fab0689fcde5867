//! Values of command-line options, from the lists of the library.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error, ValueEnum};
use ipnet::IpNet;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use ratekeeper_core::{ALGORITHMS, Algorithm, LimitError, Micros, Rate, RateError};
use ratekeeper_lab::{PATTERNS, Pattern};

/// Output format.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Format {
    /// Text for a terminal
    Text,
    /// One JSON document
    Json,
}

/// One algorithm, or all of them.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum AlgorithmChoice {
    One(Algorithm),
    All,
}

/// Parses the value of `--algorithm`.
#[derive(Clone)]
pub(crate) struct AlgorithmChoiceParser;

impl TypedValueParser for AlgorithmChoiceParser {
    type Value = AlgorithmChoice;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<AlgorithmChoice, Error> {
        if value == "concurrency" {
            let why = "concurrency cannot be simulated: it depends on how long requests take, and a trace has only their arrival times\n";
            return Err(Error::raw(ErrorKind::InvalidValue, why).with_cmd(command));
        }
        let parse = |name: String| match name.as_str() {
            "all" => Ok::<_, LimitError>(AlgorithmChoice::All),
            name => name.parse().map(AlgorithmChoice::One),
        };
        let names = PossibleValuesParser::new(algorithm_values());
        names.try_map(parse).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(algorithm_values()))
    }
}

fn algorithm_values() -> impl Iterator<Item = PossibleValue> {
    let one = ALGORITHMS.iter().map(|algorithm| {
        let value = PossibleValue::new(algorithm.name()).help(describe_algorithm(*algorithm));
        if *algorithm == Algorithm::TokenBucket { value.alias("gcra") } else { value }
    });
    one.chain([PossibleValue::new("all").help("All algorithms, compared")])
}

fn describe_algorithm(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => {
            "A counter for each window; up to twice the limit around a boundary"
        }
        Algorithm::SlidingLog => "Stores every request; never more than the limit in a period",
        Algorithm::SlidingCounter => {
            "Two counters for each key; smooth, assumes that past arrivals were even"
        }
        Algorithm::TokenBucket => "A burst, then a steady rate (also known as gcra)",
        Algorithm::LeakyBucket => {
            "A queue: admits like a token bucket, releases requests evenly spaced"
        }
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
        Pattern::Burst => "The requests of three periods at once, then none",
        Pattern::Boundary => "The whole limit just before a window boundary, and again just after",
        Pattern::Poisson => "Independent clients: random gaps",
        Pattern::FlashSale => {
            "Half the limit; in the middle third, one more key (\"partner\") at 40 times that rate"
        }
    }
}

/// Returns the error of the first argument that is a negative rate. It begins with a hyphen, so clap would
/// report an unknown option.
pub(crate) fn negative_rate(args: impl Iterator<Item = OsString>) -> Option<RateError> {
    let is_negative =
        |arg: &String| arg.starts_with('-') && arg[1..].starts_with(|c: char| c.is_ascii_digit());
    let mut args = args.filter_map(|arg| arg.into_string().ok());
    let rate = args.find(|arg| is_negative(arg) && (arg.contains('/') || arg.contains(" per ")))?;
    rate.parse::<Rate>().err()
}

/// Why the value of an option is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("{}", .0.message())]
    Duration(#[from] RateError),
    #[error(
        "expected a date or a time from 1970 to 2099, such as 2026-03-28 or 2026-03-28T18:00:00+01:00"
    )]
    Time,
    #[error("expected an address and a port such as 127.0.0.1:9091, or \"off\"")]
    Address(#[source] AddrParseError),
    #[error(
        "expected an address and a port such as 127.0.0.1:8081, \"unix:\" and the path of a socket, or \
         \"off\""
    )]
    LocalAddress(#[source] Option<AddrParseError>),
    #[error("expected a network such as 10.0.0.0/8")]
    Network(#[source] AddrParseError),
}

/// Parses a duration such as `10s` or `2m`.
pub(crate) fn duration(text: &str) -> Result<Duration, ValueError> {
    Ok(ratekeeper_core::parse_duration(text)?)
}

/// Parses a date or a time, in UTC unless it has an offset.
pub(crate) fn time(text: &str) -> Result<Micros, ValueError> {
    let of_date = || text.parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok();
    let parsed = text.parse::<Timestamp>().ok();
    let timestamp = parsed.or_else(|| Some(of_date()?.timestamp())).ok_or(ValueError::Time)?;
    let us = u64::try_from(timestamp.as_microsecond()).ok();
    us.filter(|us| *us < TIMES_END_US).map(Micros::new).ok_or(ValueError::Time)
}

/// The year 2100. Times up to 2112 can be counted exactly, and traffic takes some.
const TIMES_END_US: u64 = 4_102_444_800_000_000;

/// The address of a listener; `None` if it is off.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) Option<SocketAddr>);

/// Parses an address and a port, or "off".
pub(crate) fn address(text: &str) -> Result<Address, ValueError> {
    match text {
        "off" => Ok(Address(None)),
        _ => Ok(Address(Some(text.parse().map_err(ValueError::Address)?))),
    }
}

/// Where a listener listens that may also be on a Unix domain socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LocalAddress {
    Off,
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Parses an address and a port, `unix:` and a path, or "off".
pub(crate) fn local_address(text: &str) -> Result<LocalAddress, ValueError> {
    match (text, text.strip_prefix("unix:")) {
        ("off", _) => Ok(LocalAddress::Off),
        (_, Some("")) => Err(ValueError::LocalAddress(None)),
        (_, Some(path)) => Ok(LocalAddress::Unix(path.into())),
        (text, None) => {
            let address = text.parse().map_err(|error| ValueError::LocalAddress(Some(error)))?;
            Ok(LocalAddress::Tcp(address))
        }
    }
}

/// Parses a network, or one address.
pub(crate) fn network(text: &str) -> Result<IpNet, ValueError> {
    let one = || text.parse().map(|ip: IpAddr| IpNet::from(ip));
    text.parse().or_else(|_| one()).map_err(ValueError::Network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_may_be_on_a_unix_domain_socket() {
        for text in ["127.0.0.1:8081", "unix:/run/grpc.sock", "unix:grpc.sock", "off"] {
            assert_eq!(local_address(text).unwrap().to_string(), text);
        }
        for text in ["unix:", "8081", "/run/grpc.sock", ""] {
            assert!(local_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_is_in_utc_unless_it_has_an_offset() {
        let seconds = |text| time(text).ok().map(|time| time.get() / 1_000_000);
        assert_eq!(seconds("2026-03-28"), Some(1_774_656_000));
        assert_eq!(seconds("2026-03-28T18:00:00Z"), Some(1_774_656_000 + 18 * 3_600));
        assert_eq!(seconds("2026-03-28T18:00:00+01:00"), Some(1_774_656_000 + 17 * 3_600));
        for text in
            ["1969-12-31", "2100-01-01", "9999-01-01", "2026-13-01", "tomorrow", "", "28.3.2026"]
        {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_trusted_proxy_is_a_network_or_an_address() {
        assert!(network("10.0.0.0/8").is_ok() && network("::1").is_ok());
        assert!(network("10.0.0.0/33").is_err() && network("proxy").is_err());
    }
}
