//! Simulation of rate limits in virtual time: shows what a limit would do to traffic.
//!
//! [`Trace`] reads recorded arrivals and [`Traffic`] generates them. [`Simulation`] decides each
//! one with the same store that serves real traffic, and [`compare`] reports how several limits
//! handle the same arrivals. Time comes from the arrivals: nothing reads a clock or sleeps. [`service`]
//! models a service under overload, behind a concurrency limit. [`plan`] finds the rate that a service can be offered, and
//! [`scenario`] runs clients, limiter, store and service together.
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper_core::{Algorithm, Limit};
//! use ratekeeper_lab::{Pattern, Traffic, compare};
//!
//! // The whole limit just before a window boundary, and again just after.
//! let rate = "10/s".parse()?;
//! let traffic = Traffic::new(Pattern::Boundary, rate, Duration::from_secs(10));
//! let limits = [Limit::new(rate, Algorithm::FixedWindow)?, Limit::new(rate, Algorithm::SlidingLog)?];
//!
//! let report = compare(&limits, traffic.arrivals().map(Ok), Some(traffic.span()), 1_000)?;
//! let peak = |i: usize| report.runs()[i].summary().most_in_a_period();
//! assert_eq!(peak(0), Some(20), "twice the limit within a second");
//! assert_eq!(peak(1), Some(10));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod access_log;
mod arrival;
mod canvas;
mod chart;
mod compare;
mod compare_document;
mod event_queue;
mod histogram;
mod json;
mod peak;
pub mod plan;
mod random;
mod releases;
pub mod replay;
pub mod report;
pub mod retry;
mod round;
pub mod scenario;
pub mod service;
mod simulate;
mod summary;
mod table;
mod text;
mod timeline;
mod trace;
mod traffic;

pub use arrival::Arrival;
pub use chart::TextOptions;
pub use compare::{AllAlgorithms, Report, Run, compare, compare_simulations};
pub use json::write_decisions;
pub use simulate::{Decider, SimulateError, Simulation};
pub use summary::Summary;
pub use text::span_text;
pub use timeline::Columns;
pub use trace::{Trace, TraceError};
pub use traffic::{PATTERNS, Pattern, Traffic};
