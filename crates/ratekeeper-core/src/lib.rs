//! The exact core of Ratekeeper: rates, limits and the algorithms that decide.
//!
//! Everything here is pure. Time is an argument ([`Micros`]), state is a value ([`Cell`] or
//! [`Log`]) that the caller keeps, and a decision never touches a float. Stores keep the state and
//! doors speak protocols; neither decides anything.
//!
//! ```
//! use ratekeeper_core::{Cell, Cost, Limit, Micros};
//!
//! let limit = Limit::token_bucket("5/s burst 2")?;
//! let rule = limit.cell_rule().expect("a token bucket keeps a cell");
//!
//! let mut cell = Cell::FRESH;
//! let now = Micros::new(1_000_000);
//! assert!(rule.check(&mut cell, Cost::ONE, now).allowed());
//! assert!(rule.check(&mut cell, Cost::ONE, now).allowed());
//!
//! let denied = rule.check(&mut cell, Cost::ONE, now);
//! assert!(!denied.allowed());
//! assert_eq!(denied.retry_after().unwrap().as_millis(), 200);
//! # Ok::<(), ratekeeper_core::LimitError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod algorithm;
mod cell;
mod cost;
mod decision;
mod failure_mode;
mod limit;
mod rate;
mod terms;
mod time;

pub use algorithm::{
    ALGORITHMS, Algorithm, CellRule, CounterRule, KindOfRule, Log, LogRule, Rule, RuleTime,
    RuleVisitor, TimeRule,
};
pub use cell::{Cell, CellWord};
pub use cost::{Cost, ZeroCost};
pub use decision::{Decision, Wait};
pub use failure_mode::FailureMode;
pub use limit::{Limit, LimitError, Scope};
pub use rate::{Rate, RateError, parse_duration};
pub use terms::{Span, Terms};
pub use time::Micros;
