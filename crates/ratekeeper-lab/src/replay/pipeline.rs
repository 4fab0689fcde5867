//! Reads logs on several threads, and merges their requests in the order of time.
//!
//! Threads take turns to read a block of a log, and parse and resolve it on their own. The thread that decides takes the
//! batches of each log in the order of the log, and asks for one only when it needs it. So the result is the same
//! with any number of threads.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ratekeeper_core::Micros;

use super::logs::{Log, ReadOptions, ReadProgress};
use super::order::Order;
use super::prepare::Preparer;
use super::request::{Batch, LoggedRequest, Variants};
use super::summary::{LogSummary, ReadSummary, Skipped, SkippedLine};

/// Blocks of a log that are read ahead.
const AHEAD: usize = 4;

/// A batch, `None` at the end of a log, or why it cannot be read.
type Prepared = io::Result<Option<Batch>>;

pub(super) fn run(
    logs: Vec<Log>,
    options: &ReadOptions,
    policies: &[Variants],
    progress: Box<dyn FnMut(&ReadProgress)>,
    visit: &mut dyn FnMut(&LoggedRequest<'_>),
) -> ReadSummary {
    let shared = Shared {
        logs: logs.into_iter().map(|log| Mutex::new(Reader { log, next_ticket: 0 })).collect(),
        options,
        policies,
    };
    let workers = options.threads.saturating_sub(1);
    if workers == 0 {
        let mut preparer = Preparer::new(policies, options.within.clone());
        let source = |log: usize| shared.prepare(log, &mut preparer).1;
        return Merge::new(&shared, progress).run(source, visit);
    }
    thread::scope(|scope| {
        let (jobs, taken) = channel();
        let (done, batches) = channel();
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..workers {
            let (taken, done, shared) = (Arc::clone(&taken), done.clone(), &shared);
            scope.spawn(move || work(shared, &taken, &done));
        }
        drop(done);
        let mut ahead = ReadAhead::new(shared.logs.len(), jobs, batches);
        Merge::new(&shared, progress).run(|log| ahead.next(log), visit)
    })
}

/// What all threads share.
struct Shared<'s> {
    logs: Vec<Mutex<Reader>>,
    options: &'s ReadOptions,
    policies: &'s [Variants],
}

struct Reader {
    log: Log,
    next_ticket: usize,
}

impl Shared<'_> {
    /// Prepares the next block of a log. Returns its number too.
    fn prepare(&self, log: usize, preparer: &mut Preparer<'_>) -> (usize, Prepared) {
        let (ticket, block, format) = {
            let mut reader = self.logs[log].lock().unwrap_or_else(PoisonError::into_inner);
            let ticket = reader.next_ticket;
            reader.next_ticket += 1;
            (ticket, reader.log.lines.next_block(), Arc::clone(&reader.log.format))
        };
        let prepare = |block| preparer.prepare(&block, &format, log);
        (ticket, block.map(|block| block.map(prepare)))
    }
}

fn work(
    shared: &Shared<'_>,
    jobs: &Mutex<Receiver<usize>>,
    done: &Sender<(usize, usize, Prepared)>,
) {
    let mut preparer = Preparer::new(shared.policies, shared.options.within.clone());
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(log) = job else { return };
        let (ticket, prepared) = shared.prepare(log, &mut preparer);
        if done.send((log, ticket, prepared)).is_err() {
            return;
        }
    }
}

/// The batches of each log that were prepared ahead.
struct ReadAhead {
    jobs: Sender<usize>,
    batches: Receiver<(usize, usize, Prepared)>,
    logs: Vec<Ahead>,
}

#[derive(Default)]
struct Ahead {
    /// The batches from `next` on, as far as they are there.
    ready: VecDeque<Option<Prepared>>,
    next: usize,
    /// How many batches were asked for.
    asked: usize,
}

impl ReadAhead {
    fn new(logs: usize, jobs: Sender<usize>, batches: Receiver<(usize, usize, Prepared)>) -> Self {
        Self { jobs, batches, logs: (0..logs).map(|_| Ahead::default()).collect() }
    }

    fn next(&mut self, log: usize) -> Prepared {
        loop {
            while self.logs[log].asked < self.logs[log].next + AHEAD {
                self.logs[log].asked += 1;
                // The workers are there as long as this is.
                _ = self.jobs.send(log);
            }
            let ahead = &mut self.logs[log];
            if let Some(prepared) = ahead.ready.front_mut().and_then(Option::take) {
                ahead.ready.pop_front();
                ahead.next += 1;
                return prepared;
            }
            let Ok((of, ticket, prepared)) = self.batches.recv() else { return Ok(None) };
            let ahead = &mut self.logs[of];
            let index = ticket - ahead.next;
            if ahead.ready.len() <= index {
                ahead.ready.resize_with(index + 1, || None);
            }
            ahead.ready[index] = Some(prepared);
        }
    }
}

/// Merges the requests of all logs.
struct Merge<'m> {
    shared: &'m Shared<'m>,
    orders: Vec<Order>,
    /// The times of the first requests of the logs, which do not decrease.
    firsts_us: Vec<u64>,
    /// How many logs are read so far; the others begin later.
    begun: usize,
    errors: Vec<Option<String>>,
    skipped: Skipped,
    summary: ReadSummary,
    progress: Box<dyn FnMut(&ReadProgress)>,
}

impl<'m> Merge<'m> {
    fn new(shared: &'m Shared<'m>, progress: Box<dyn FnMut(&ReadProgress)>) -> Self {
        let first_us =
            |log: &Mutex<Reader>| log.lock().unwrap_or_else(PoisonError::into_inner).log.first_us;
        let logs = shared.logs.len();
        Self {
            shared,
            orders: (0..logs).map(|_| Order::new(shared.options.reorder_us)).collect(),
            firsts_us: shared.logs.iter().map(first_us).collect(),
            begun: 0,
            errors: vec![None; logs],
            skipped: Skipped::default(),
            summary: ReadSummary::default(),
            progress,
        }
    }

    fn run(
        mut self,
        mut source: impl FnMut(usize) -> Prepared,
        visit: &mut dyn FnMut(&LoggedRequest<'_>),
    ) -> ReadSummary {
        while let Some((log, until_us)) = self.next(&mut source) {
            while self.orders[log].next_at_us().is_some_and(|at_us| at_us <= until_us) {
                self.visit(log, visit);
            }
        }
        self.finish()
    }

    /// Returns the log that has the next request, and up to which time no other log has one.
    fn next(&mut self, source: &mut impl FnMut(usize) -> Prepared) -> Option<(usize, u64)> {
        let mut first: Option<(u64, usize)> = None;
        let mut second_us = u64::MAX;
        let mut log = 0;
        loop {
            if log == self.begun {
                // A log whose first request is later cannot have an earlier one, but for the window.
                let begins_us = self.firsts_us.get(log);
                let begins_us =
                    begins_us.map(|us| us.saturating_sub(self.shared.options.reorder_us));
                match (first, begins_us) {
                    (_, None) => break,
                    (Some((at_us, _)), Some(begins_us)) if begins_us > at_us => {
                        second_us = second_us.min(begins_us - 1);
                        break;
                    }
                    _ => self.begun += 1,
                }
            }
            if let Some(at_us) = self.due(log, source) {
                match first {
                    Some((first_us, _)) if first_us <= at_us => second_us = second_us.min(at_us),
                    _ => {
                        second_us = first.map_or(second_us, |(us, _)| second_us.min(us));
                        first = Some((at_us, log));
                    }
                }
            }
            log += 1;
        }
        let (first_us, log) = first?;
        // A request of the same time in an earlier log comes first; so this one goes on only up to the time before.
        Some((log, first_us.max(second_us.saturating_sub(1))))
    }

    /// Returns the time of the next request of a log. Reads batches until it is known.
    fn due(&mut self, log: usize, source: &mut impl FnMut(usize) -> Prepared) -> Option<u64> {
        loop {
            let order = &mut self.orders[log];
            if order.next_at_us().is_some() || order.is_complete() {
                return order.next_at_us();
            }
            match source(log) {
                Ok(Some(mut batch)) => {
                    self.summary.lines += batch.lines;
                    self.summary.outside += batch.outside;
                    self.skipped.append(std::mem::take(&mut batch.skipped));
                    let (lines, requests) = (self.summary.lines, self.summary.requests);
                    (self.progress)(&ReadProgress { lines, requests });
                    order.add(batch);
                }
                Ok(None) => order.complete(),
                Err(error) => {
                    self.errors[log] = Some(error.to_string());
                    order.complete();
                }
            }
        }
    }

    fn visit(&mut self, log: usize, visit: &mut dyn FnMut(&LoggedRequest<'_>)) {
        let (policies, summary) = (self.shared.policies, &mut self.summary);
        self.orders[log].take(|at_us, batch, index| {
            // The requests of another log may be later.
            let at_us = at_us.max(summary.end_us);
            if summary.requests == 0 {
                summary.start_us = at_us;
            }
            summary.end_us = at_us;
            summary.requests += 1;
            visit(&LoggedRequest { at: Micros::new(at_us), batch, index, policies });
        });
    }

    fn finish(mut self) -> ReadSummary {
        self.summary.late = self.orders.iter().map(|order| order.late).sum();
        let mut names = Vec::new();
        for (log, error) in self.shared.logs.iter().zip(self.errors) {
            let log = &log.lock().unwrap_or_else(PoisonError::into_inner).log;
            names.push(log.name.clone());
            let (name, format) = (log.name.clone(), log.format.name().to_string());
            self.summary.logs.push(LogSummary { name, format, error });
        }
        self.summary.skipped = self.skipped.lines;
        let shown = self.skipped.first.into_iter().map(|skipped| SkippedLine {
            file: names[skipped.file].clone(),
            line: skipped.line,
            why: skipped.why.to_string(),
            text: skipped.text,
        });
        self.summary.skipped_lines = shown.collect();
        self.summary
    }
}
