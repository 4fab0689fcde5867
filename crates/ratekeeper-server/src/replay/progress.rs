//! A progress bar on a terminal: how much is read, how fast, and how much time is left. Nothing in a pipe.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ratekeeper_lab::replay::ReadProgress;

const BAR: &str = "{wide_bar} {percent}% of {total_bytes}, {msg}, {eta} left";
const SPINNER: &str = "{spinner} {bytes}, {msg}";
/// How often it is drawn.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Progress {
    bar: ProgressBar,
    bytes: Arc<AtomicU64>,
}

impl Progress {
    pub(super) fn new(logs: &[PathBuf]) -> Self {
        let bytes = Arc::default();
        if !io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden(), bytes };
        }
        // The size of what is no file is not known.
        let size = |path: &PathBuf| fs::metadata(path).ok().filter(fs::Metadata::is_file);
        let sizes: Option<Vec<u64>> = logs.iter().map(|path| Some(size(path)?.len())).collect();
        let (bar, template) = match sizes {
            Some(sizes) => (ProgressBar::new(sizes.iter().sum()), BAR),
            None => (ProgressBar::new_spinner(), SPINNER),
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.enable_steady_tick(INTERVAL);
        Self { bar, bytes }
    }

    /// Counts what is read from this.
    pub(super) fn counted<R>(&self, input: R) -> Counted<R> {
        Counted { input, bytes: Arc::clone(&self.bytes) }
    }

    /// Returns what shows how far reading is.
    pub(super) fn observer(&self) -> impl FnMut(&ReadProgress) + use<> {
        let (bar, bytes) = (self.bar.clone(), Arc::clone(&self.bytes));
        move |progress| {
            if bar.is_hidden() {
                return;
            }
            bar.set_position(bytes.load(Ordering::Relaxed));
            let per_second = progress.lines as f64 / bar.elapsed().as_secs_f64().max(0.001);
            let millions = |lines: f64| format!("{:.1}M", lines / 1e6);
            let lines = millions(progress.lines as f64);
            bar.set_message(format!("{lines} lines, {}/s", millions(per_second)));
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Input whose bytes are counted.
pub(super) struct Counted<R> {
    input: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
