//! Reads when the requests of clients come.

use std::time::Duration;

use ratekeeper_core::Micros;
use ratekeeper_policy::yaml::Node;

use super::format::{DURATION_MAX, Head, Reader};
use super::setup::Source;
use crate::service::Load;

/// Pieces of a day's curve.
const DIURNAL_PIECES: u32 = 48;

impl Reader<'_> {
    /// Reads when requests come: in exactly one of several ways.
    pub(super) fn source(&mut self, node: &Node, head: &Head) -> Source {
        const SOURCES: [&str; 7] =
            ["rate", "load", "diurnal", "flash_sale", "bursts", "users", "trace"];
        let total = Duration::from_micros(head.duration_us);
        let nothing = Source::Open(Load::constant(0.0, Duration::ZERO));
        let stated: Vec<_> = SOURCES.iter().filter(|name| node.get(name).is_some()).collect();
        let [name] = stated[..] else {
            let why = format!("clients need exactly one of {}", SOURCES.join(", "));
            self.report::<()>(node, &why);
            return nothing;
        };
        let value = node.get(name).unwrap_or(node);
        let source = match *name {
            "rate" => self.per_second(value).map(|rate| Source::Open(Load::constant(rate, total))),
            "load" => self.load(value).map(Source::Open),
            "diurnal" => self.diurnal(value, total).map(Source::Open),
            "flash_sale" => self.flash_sale(value, total).map(Source::Open),
            "bursts" => Some(self.bursts(value)),
            "users" => self.whole(value, 1).map(|users| Source::Closed {
                users,
                think_us: self.us_or(node, "think", Duration::from_secs(1)),
            }),
            _ => self.trace(value),
        };
        source.unwrap_or(nothing)
    }

    fn load(&mut self, node: &Node) -> Option<Load> {
        let mut load = None;
        for piece in node.items() {
            self.only(piece, &["rate", "ramp", "for"]);
            let length = self.required(piece, "for").and_then(|node| self.duration(node))?;
            let (rate, ramp) = (piece.get("rate"), piece.get("ramp"));
            load = Some(match (rate, ramp, load.take()) {
                (Some(rate), None, None) => Load::constant(self.per_second(rate)?, length),
                (Some(rate), None, Some(load)) => Load::then(load, self.per_second(rate)?, length),
                (None, Some(ramp), Some(load)) => Load::ramp(load, self.per_second(ramp)?, length),
                _ => {
                    let why = "use \"rate\", or \"ramp\" after another piece";
                    return self.report(piece, why);
                }
            });
        }
        load
    }

    /// A cosine between two rates that begins at the lower one.
    fn diurnal(&mut self, node: &Node, total: Duration) -> Option<Load> {
        self.only(node, &["low", "high", "period"]);
        let low = self.required(node, "low").and_then(|node| self.per_second(node))?;
        let high = self.required(node, "high").and_then(|node| self.per_second(node))?;
        let period = self.required(node, "period").and_then(|node| self.duration(node))?;
        let piece = period / DIURNAL_PIECES;
        if piece.is_zero() {
            return self.report(node, "the period is too short");
        }
        let pieces = (total.as_micros() / piece.as_micros()) as u32 + 1;
        let rate = |n: u32| {
            let angle =
                std::f64::consts::TAU * f64::from(n % DIURNAL_PIECES) / f64::from(DIURNAL_PIECES);
            low + (high - low) * (1.0 - angle.cos()) / 2.0
        };
        let start = Load::constant(low, Duration::from_micros(1));
        Some((1..=pieces.min(1_000_000)).fold(start, |load, n| load.ramp(rate(n), piece)))
    }

    /// A steady rate, and for a while another one, which is reached within a tenth of that time.
    fn flash_sale(&mut self, node: &Node, total: Duration) -> Option<Load> {
        self.only(node, &["rate", "peak", "at", "for"]);
        let rate = self.required(node, "rate").and_then(|node| self.per_second(node))?;
        let peak = self.required(node, "peak").and_then(|node| self.per_second(node))?;
        let at = self.required(node, "at").and_then(|node| self.duration(node))?;
        let length = self.required(node, "for").and_then(|node| self.duration(node))?;
        let ramp = length / 10;
        let load = Load::constant(rate, at).ramp(peak, ramp).then(peak, length - 2 * ramp);
        let load = load.ramp(rate, ramp);
        let rest = total.saturating_sub(load.duration());
        Some(load.then(rate, rest))
    }

    fn bursts(&mut self, node: &Node) -> Source {
        self.only(node, &["size", "every", "first"]);
        let every = self.us_or(node, "every", DURATION_MAX).max(1);
        Source::Bursts {
            size: self.whole_or(node, "size", 1, 1),
            every_us: every,
            first_us: self.us_or(node, "first", Duration::ZERO),
        }
    }

    fn trace(&mut self, node: &Node) -> Option<Source> {
        match (self.traces)(node.text().unwrap_or_default()) {
            Ok(mut arrivals) => {
                let first_us = arrivals.first().map_or(0, |arrival| arrival.at.get());
                let from_first = |at_us: u64| Micros::new(at_us.saturating_sub(first_us));
                arrivals.iter_mut().for_each(|one| one.at = from_first(one.at.get()));
                Some(Source::Trace(arrivals))
            }
            Err(why) => self.report(node, &why),
        }
    }
}
