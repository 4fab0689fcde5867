//! Redis' wire format, both ways: requests in, replies out. Everything has a bound.

mod inline;
mod reply;
mod request;

pub(super) use reply::{Protocol, Reply};
pub(super) use request::{Args, Parsed, ProtocolError, Spans, parse};

/// The most arguments of a command, its name among them.
pub(super) const ARGS_MAX: usize = 64;
/// The longest argument.
pub(super) const BULK_MAX: usize = 64 << 10;
/// The longest command that comes as a plain line.
pub(super) const INLINE_MAX: usize = 64 << 10;
/// The longest command as a whole: more than one long argument makes no sense here.
pub(super) const COMMAND_MAX: usize = 128 << 10;
