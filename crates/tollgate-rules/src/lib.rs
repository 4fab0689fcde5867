//! The policy of a rate limiter: a policy text and a request's attributes in, the limits to charge
//! out. Does no I/O and reads no clock.

pub mod client_ip;
pub mod jwt;
pub mod path;
pub mod suggest;
