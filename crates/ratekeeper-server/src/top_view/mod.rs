//! `ratekeeper top`: the rates, keys and store of a running server, in a terminal.
//!
//! `reading` asks the admin API, `state` is what is shown and what keys change, `pane` and `table` are its rows,
//! `draw` puts them into a buffer, `screen` is the terminal, and `once` prints a frame for pipes.

mod draw;
mod once;
mod pane;
mod rates;
mod reading;
mod screen;
mod state;
mod summary;
mod table;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use crate::admin_client::{AdminClient, AdminOptions};
use crate::choices::{Format, duration};
use crate::failure::{ErrorBox, Failure};
use crate::terminal;
use draw::Look;
use reading::{ReadError, read};
use state::State;

const EXAMPLES: &str = "\
Keys:
  Tab, 1 to 5         next pane, this pane
  n a d s e p m r     sort limits by name, admitted, denied, shadow, near, denied %, mode, rate
  c e l n             sort keys by count, error, limit, key; again: reverse, as for limits
  /                   filter by a part of a name, key, mode or rate; Enter keeps it, Esc clears it
  arrows, PgUp, PgDn  scroll
  q, Esc, Ctrl-C      quit

Examples:
  Watch the server on this machine:
    ratekeeper top

  Watch another one, over TLS and with a token:
    ratekeeper top --admin https://limits.example:9091 --token /etc/ratekeeper/admin.token

  Print the rates of the next ten seconds:
    ratekeeper top --once --interval 10s

Exit codes: 0 success, 1 the server cannot be reached at the start, 2 invalid options.";

/// Watch a running server in a terminal: rates by limit, hottest and most denied keys, store
///
/// If standard output is not a terminal, it prints one frame, as with --once.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopView {
    /// Time between two readings, from 100ms to 1h; rates are averages over it
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,

    /// Print one frame, after two readings, and exit
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    admin: AdminOptions,

    /// Output format; json implies --once
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(3_600);

/// The value of `--interval` is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a duration from 100ms to 1h")]
struct IntervalOutOfRange;

fn parse_interval(text: &str) -> Result<Duration, ErrorBox> {
    let interval = duration(text)?;
    match (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        true => Ok(interval),
        false => Err(IntervalOutOfRange.into()),
    }
}

impl TopView {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let client = self.admin.client()?;
        let is_once = self.once || self.format == Format::Json || !io::stdout().is_terminal();
        if !is_once {
            let look = Look { color: terminal::text_options().color };
            return client.block_on(async {
                let state = State::new(client.address(), read(&client).await?);
                screen::run(&client, state, self.interval, look).await
            });
        }
        let state = client.block_on(read_twice(&client, self.interval))?;
        let text = match self.format {
            Format::Json => format!("{:#}\n", once::json(&state)),
            Format::Text => once::text(&state),
        };
        io::stdout().write_all(text.as_bytes()).map_err(Failure::output)
    }
}

/// Returns what is known after two readings, which rates need.
async fn read_twice(client: &AdminClient, interval: Duration) -> Result<State, ReadError> {
    let mut state = State::new(client.address(), read(client).await?);
    tokio::time::sleep(interval).await;
    state.update(read(client).await?);
    Ok(state)
}

/// Returns a time of a server to the second, in UTC.
fn time_text(us: u64) -> String {
    let us = i64::try_from(us).ok();
    let time = us.and_then(|us| Timestamp::from_microsecond(us).ok());
    time.map_or("-".into(), |time| format!("{time:.0}"))
}
