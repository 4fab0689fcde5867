//! The width and the colours of standard output, and texts that are safe to print there.

use std::ffi::OsString;
use std::io;

use anstream::{AutoStream, ColorChoice};
use ratekeeper_lab::TextOptions;
use terminal_size::{Width, terminal_size_of};

/// Returns how to lay out text for standard output.
///
/// `COLUMNS` overrides the width of the terminal. There is colour on a terminal only, unless
/// `CLICOLOR_FORCE` is set, and none with `NO_COLOR` or `TERM=dumb`.
pub(crate) fn text_options() -> TextOptions {
    let columns = std::env::var_os("COLUMNS").and_then(parse_columns);
    let width = columns.or_else(|| {
        let (Width(width), _) = terminal_size_of(io::stdout())?;
        Some(usize::from(width))
    });
    TextOptions {
        width: width.unwrap_or(TextOptions::default().width),
        color: AutoStream::choice(&io::stdout()) != ColorChoice::Never,
    }
}

fn parse_columns(text: OsString) -> Option<usize> {
    text.into_string().ok()?.parse().ok().filter(|columns| *columns > 0)
}

/// Replaces control characters, which could move the cursor: clients choose these texts.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
