//! The promises of load shedding.

mod promises;
mod queue;
