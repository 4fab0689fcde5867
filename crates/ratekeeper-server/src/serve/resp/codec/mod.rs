//! The wire format of the Redis protocol: parses requests and writes replies, all within bounds.

mod inline;
mod reply_writer;
mod request;

pub(super) use reply_writer::{ReplyWriter, RespVersion};
pub(super) use request::{Args, Parsed, ProtocolError, Spans, parse};

/// The most arguments of a command, including its name.
pub(super) const ARGS_MAX: usize = 64;
/// The longest argument.
pub(super) const BULK_MAX: usize = 64 << 10;
/// The longest inline command.
pub(super) const INLINE_MAX: usize = 64 << 10;
/// The longest command as a whole: no command needs more than one long argument.
pub(super) const COMMAND_MAX: usize = 128 << 10;
