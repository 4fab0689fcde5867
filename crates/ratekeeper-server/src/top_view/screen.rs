//! The terminal: keys in, frames out, and its state restored at the end.

use std::io;
use std::pin::pin;
use std::time::Duration;

use crossterm::event::EventStream;
use futures_util::stream::{self, StreamExt};
use ratatui::DefaultTerminal;
use tokio::time::{MissedTickBehavior, interval};

use super::draw::{Look, draw};
use super::reading::read;
use super::state::{Flow, State};
use crate::admin_client::AdminClient;
use crate::failure::{Failure, with_sources};
use crate::listener::Termination;

/// The terminal in raw mode, with another screen. Restored on drop, and before the message of a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore())
    }

    fn draw(&mut self, state: &mut State, look: Look) -> io::Result<()> {
        self.0.draw(|frame| {
            state.resize(frame.area().height);
            draw(state, look, frame.area(), frame.buffer_mut());
        })?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = self.0.show_cursor();
        // To restore it twice would move the cursor into the message of the panic.
        if !std::thread::panicking() {
            let _ = ratatui::try_restore();
        }
    }
}

/// Shows the server until a key or a signal ends it. A server that cannot be read is asked again at the next
/// interval.
pub(super) async fn run(
    client: &AdminClient,
    mut state: State,
    every: Duration,
    look: Look,
) -> Result<(), Failure> {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first one is due at once, and there is a reading.
    ticks.tick().await;
    let readings = stream::unfold(ticks, |mut ticks| async move {
        ticks.tick().await;
        Some((read(client).await, ticks))
    });
    let mut readings = pin!(readings);
    let mut termination = Termination::new().map_err(Failure::io)?;
    let mut screen = Screen::open().map_err(Failure::io)?;
    let mut events = EventStream::new();
    loop {
        screen.draw(&mut state, look).map_err(Failure::output)?;
        tokio::select! {
            reading = readings.next() => match reading {
                Some(Ok(reading)) => state.update(reading),
                Some(Err(error)) => state.lose(with_sources(&error)),
                None => return Ok(()),
            },
            event = events.next() => match event.transpose().map_err(Failure::io)? {
                Some(event) if state.handle(&event) == Flow::Continue => {}
                _ => return Ok(()),
            },
            () = termination.received() => return Ok(()),
        }
    }
}
