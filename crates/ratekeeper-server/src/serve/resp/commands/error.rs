//! Why a command fails.

use crate::serve::caller_limit::CallerLimitError;
use crate::serve::hold_time::HOLD_MAX;
use ratekeeper::{LimitError, ZeroCost};

use super::CommandSpec;

/// Why a command fails. The reply is the [code](Self::code) and the message.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum CommandError {
    #[error("Authentication required.")]
    NoAuth,
    #[error(
        "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
         <user> <pass> option can be used to authenticate the client and select the RESP protocol version \
         at the same time"
    )]
    HelloNoAuth,
    #[error("invalid username-password pair or user is disabled.")]
    WrongPassword,
    #[error(
        "AUTH <password> called without any password configured for the default user. Are you sure your \
         configuration is correct?"
    )]
    NoPasswordConfigured,
    #[error("unsupported protocol version; use 2 or 3")]
    UnsupportedVersion,
    /// A browser was tricked into sending an HTTP request here. It gets no reply.
    #[error("HTTP request to the Redis protocol")]
    HttpRequest,
    /// The arguments are quoted, and the suggestion is empty if there is none.
    #[error("unknown command '{name}', with args beginning with: {args}{suggestion}")]
    UnknownCommand { name: String, args: String, suggestion: String },
    #[error("wrong number of arguments for '{}' command; usage: {}", .0.name.to_lowercase(), .0.syntax())]
    WrongArity(&'static CommandSpec),
    #[error("unknown subcommand '{subcommand}'; usage: {}", .command.syntax())]
    UnknownSubcommand { command: &'static CommandSpec, subcommand: String },
    #[error(
        "unknown subcommand or wrong number of arguments for '{subcommand}'; usage: {}",
        .command.syntax()
    )]
    SubcommandArity { command: &'static CommandSpec, subcommand: String },
    #[error("Syntax error in HELLO option '{0}'")]
    HelloOption(String),
    #[error("syntax error: unknown option '{option}'; use {known}")]
    UnknownOption { option: String, known: &'static str },
    #[error("'{0}' needs a value")]
    MissingValue(String),
    #[error("{name} is not a whole number: '{text}'")]
    NotAnInteger { name: &'static str, text: String },
    #[error("{name} is negative: '{text}'")]
    Negative { name: &'static str, text: String },
    #[error("{name} is too large: '{text}'")]
    TooLarge { name: &'static str, text: String },
    #[error("this is not an id; send the one that RK.RESERVE or RK.ACQUIRE returned, unchanged")]
    HoldId,
    #[error("the valid time must be 1 to {} milliseconds", HOLD_MAX.as_millis())]
    HoldTime,
    #[error("the number of permits must be at least 1")]
    NoPermits,
    #[error(transparent)]
    ZeroCost(#[from] ZeroCost),
    #[error("the maximum debt '{0}' is {error}", error = ratekeeper::MaxDebtError)]
    MaxDebt(String),
    #[error(transparent)]
    UnknownAlgorithm(LimitError),
    #[error("the rate is not valid text; use one such as 100/minute or 5/s burst 10")]
    RateNotText,
    #[error(transparent)]
    InvalidLimit(#[from] CallerLimitError),
    #[error("DB index is out of range; only 0 exists")]
    DbIndex,
    #[error(
        "Client names cannot contain spaces, newlines or special characters, and have at most {} characters",
        super::super::session::NAME_MAX
    )]
    ClientName,
}

impl CommandError {
    /// Returns the error code, by which Redis clients distinguish errors.
    pub(in super::super) fn code(&self) -> &'static str {
        match self {
            Self::NoAuth | Self::HelloNoAuth => "NOAUTH",
            Self::WrongPassword => "WRONGPASS",
            Self::UnsupportedVersion => "NOPROTO",
            _ => "ERR",
        }
    }
}
