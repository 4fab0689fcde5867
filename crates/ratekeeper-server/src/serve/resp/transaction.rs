//! The commands between `MULTI` and `EXEC`.
//!
//! A command is checked when it is queued, so that a transaction is refused before anything is charged:
//! Redis does that for the name and the number of arguments, and finds other errors only at `EXEC`.

use super::codec::{Args, Parsed, ReplyWriter, RespVersion, Spans, parse};
use super::commands::CommandError;

/// The most commands of a transaction.
pub(super) const COMMANDS_MAX: usize = 4_096;
/// The most bytes of a transaction: of its commands, and of replies whose length depends on the command.
pub(super) const BYTES_MAX: usize = 256 << 10;

/// The commands of a connection since `MULTI`.
#[derive(Default)]
pub(super) struct Transaction {
    /// The commands as a client sends them.
    commands: Vec<u8>,
    len: usize,
    reply_bytes: usize,
    is_aborted: bool,
}

impl Transaction {
    /// Returns how many commands are queued.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether a command was refused. Then none is executed.
    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted
    }

    /// Notes that a command was refused.
    pub(super) fn abort(&mut self) {
        *self = Self { is_aborted: true, ..Self::default() };
    }

    /// Queues a command whose reply has up to `reply_bytes` bytes more than that of a rate command.
    ///
    /// # Errors
    ///
    /// If the transaction would be too long.
    pub(super) fn push(&mut self, args: Args<'_>, reply_bytes: usize) -> Result<(), CommandError> {
        if self.is_aborted {
            return Ok(());
        }
        self.len += 1;
        self.reply_bytes += reply_bytes;
        let mut command = ReplyWriter::new(&mut self.commands, RespVersion::Resp2);
        command.array(args.len());
        args.from(0).for_each(|arg| command.bulk(arg));
        let bytes = self.commands.len() + self.reply_bytes;
        match self.len <= COMMANDS_MAX && bytes <= BYTES_MAX {
            true => Ok(()),
            false => Err(CommandError::TransactionTooLong),
        }
    }

    /// Calls `execute` with each command, in their order.
    pub(super) fn for_each(mut self, mut execute: impl FnMut(Args<'_>)) {
        let (mut spans, mut at) = (Spans::default(), 0);
        while let Ok(Parsed::Command(len)) = parse(&mut self.commands[at..], &mut spans) {
            execute(spans.of(&self.commands[at..]));
            at += len;
        }
    }
}
