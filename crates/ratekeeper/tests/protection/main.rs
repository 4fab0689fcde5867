//! Bulkheads and load shedding, in virtual time.
#![cfg(feature = "tower")]

mod bulkhead;
mod layers;
mod shedder;
mod support;
