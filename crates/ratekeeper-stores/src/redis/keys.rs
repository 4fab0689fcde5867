//! The Redis keys of usages.
//!
//! `PREFIX:1:LEN{=KEY}aNAME`: a prefix of the user's choice, the version of this layout, the length
//! of the caller's key and the key itself, a letter for the algorithm and the name of the limit. A
//! limit without a name of its own is called after its algorithm and rate; then the letter is a capital
//! and stands for the algorithm's name too. The length makes it injective: no two usages share a key,
//! whatever bytes they are made of. The caller's key is a hash tag, so that all limits of one key live
//! in one slot of a cluster.
//!
//! The letter of a guarantee is `g`, and its name is the length and the name of the total and the class.
//!
//! What belongs to a reservation or a held permit is found by its id: `PREFIX:1:reservation{=ID}` and
//! `PREFIX:1:permit{=ID}`.

use ratekeeper_core::Algorithm;

use crate::charge::Charge;

/// The version of the layout of keys and states.
const VERSION: &str = "1";

pub(super) fn key_of(prefix: &str, charge: &Charge<'_>) -> Vec<u8> {
    let (algorithm, name) = (charge.limit.algorithm(), charge.scope.name());
    if let Some(class) = charge.scope.class() {
        return build(prefix, charge.key, b'g', &format!("{} {name} {class}", name.len()));
    }
    let rate = name.strip_prefix(algorithm.name()).and_then(|rest| rest.strip_prefix(' '));
    match rate {
        Some(rate) => build(prefix, charge.key, letter(algorithm).to_ascii_uppercase(), rate),
        None => build(prefix, charge.key, letter(algorithm), name),
    }
}

/// The Redis key of the permits of this name and key.
pub(super) fn permits_key(prefix: &str, name: &str, key: &[u8]) -> Vec<u8> {
    build(prefix, key, b'p', name)
}

/// The Redis key of the record of a reservation.
pub(super) fn reservation_key(prefix: &str, id: u128) -> Vec<u8> {
    format!("{prefix}:{VERSION}:reservation{{={id:032x}}}").into_bytes()
}

/// The Redis key of what says where a held permit is.
pub(super) fn permit_key(prefix: &str, id: u128) -> Vec<u8> {
    format!("{prefix}:{VERSION}:permit{{={id:032x}}}").into_bytes()
}

/// The Redis key that exists until a reservation is settled for this key.
pub(super) fn guard_key(prefix: &str, key: &[u8], id: u128) -> Vec<u8> {
    build(prefix, key, b'r', &format!("{id:032x}"))
}

fn build(prefix: &str, of: &[u8], letter: u8, name: &str) -> Vec<u8> {
    let head = format!("{prefix}:{VERSION}:{}{{=", of.len());
    let mut key = Vec::with_capacity(head.len() + of.len() + name.len() + 2);
    key.extend_from_slice(head.as_bytes());
    key.extend_from_slice(of);
    key.extend_from_slice(&[b'}', letter]);
    key.extend_from_slice(name.as_bytes());
    key
}

fn letter(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::FixedWindow => b'w',
        Algorithm::SlidingLog => b'l',
        Algorithm::SlidingCounter => b'c',
        Algorithm::TokenBucket => b't',
        Algorithm::LeakyBucket => b'q',
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use ratekeeper_core::{ALGORITHMS, Guarantees, Limit};

    use super::*;

    #[test]
    fn no_two_usages_share_a_key() {
        let parts = ["", "a", "b", "}", "{", "a}t", "}tb", "=", "1{=a}t", "a}tb", ":1:", "t", "T"];
        let names = ["1/s", "token_bucket 1/s", "sliding_log 1/s", "T1/s", "token_bucket ", " 1/s"];
        let names = [&parts[..], &names].concat();
        let mut seen = HashSet::new();
        for algorithm in ALGORITHMS {
            for name in &names {
                let limit = Limit::new("1/s".parse().unwrap(), *algorithm).unwrap().named(name);
                for key in parts {
                    let key = key_of("p", &Charge::new(&limit, key));
                    assert!(seen.insert(key.clone()), "{}", String::from_utf8_lossy(&key));
                }
            }
        }
        for name in &names {
            let total = Limit::token_bucket("9/s").unwrap().named(name);
            for class in parts {
                let guarantees = Guarantees::new(total.clone(), [(class, "1/s".parse().unwrap())]);
                let limit = guarantees.unwrap().class(class);
                for key in parts {
                    let usages: Vec<_> = Charge::guaranteed(&limit, key).usages().collect();
                    assert!(seen.contains(&key_of("p", &usages[0])), "the total");
                    let key = key_of("p", &usages[1]);
                    assert!(seen.insert(key.clone()), "{}", String::from_utf8_lossy(&key));
                }
            }
        }
    }
}
