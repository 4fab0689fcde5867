//! The core of Ratekeeper: rates, limits and exact rate-limiting algorithms.
//!
//! All functions are pure. Time is an argument ([`Micros`]), the state of a key is a value
//! ([`Cell`] or [`RequestLog`]) that the caller keeps, and all arithmetic is on integers. Stores
//! keep the state and listeners implement the protocols; both use the algorithms here.
//!
//! The feature `calendar` adds periods of the calendar (`1000/calendar day in Europe/Berlin`) and a
//! time-zone database that is compiled in.
//!
//! ```
//! use ratekeeper_core::{Cell, Cost, Limit, Micros};
//!
//! let limit = Limit::token_bucket("5/s burst 2")?;
//! let evaluator = limit.cell_evaluator().expect("the state of a token bucket is a cell");
//!
//! let mut cell = Cell::EMPTY;
//! let now = Micros::new(1_000_000);
//! assert!(evaluator.check(&mut cell, Cost::ONE, now).allowed());
//! assert!(evaluator.check(&mut cell, Cost::ONE, now).allowed());
//!
//! let denied = evaluator.check(&mut cell, Cost::ONE, now);
//! assert!(!denied.allowed());
//! assert_eq!(denied.retry_after().unwrap().as_millis(), 200);
//! # Ok::<(), ratekeeper_core::LimitError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod algorithm;
mod calendar;
mod cell;
mod cost;
mod decision;
mod failure_mode;
mod guarantee;
mod key;
mod limit;
mod max_debt;
mod params;
mod rate;
mod share;
mod suggest;
mod time;

pub use algorithm::{ALGORITHMS, Algorithm, CellEvaluator, Evaluator, RequestLog, SlidingLog};
pub use calendar::{CalendarError, CalendarPeriod, CalendarUnit, TimeZone};
pub use cell::Cell;
pub use cost::{Cost, IntoCost, ZeroCost};
pub use decision::{Decision, Wait};
pub use failure_mode::FailureMode;
pub use guarantee::{
    BucketCell, GUARANTEES_MAX, GuaranteeParams, GuaranteedLimit, Guarantees, GuaranteesError,
};
pub use key::Key;
pub use limit::{Limit, LimitError, Scope};
pub use max_debt::{MaxDebt, MaxDebtError};
pub use params::{FractionalMicros, LimitParams};
pub use rate::{Rate, RateError, parse_duration};
pub use time::Micros;
