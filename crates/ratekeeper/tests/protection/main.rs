//! Bulkheads, adaptive limits and load shedding, in virtual time.
#![cfg(feature = "tower")]

mod adaptive;
mod bulkhead;
mod dependencies;
mod layers;
mod policy;
mod shedder;
mod support;
