//! The encoding of a reservation's record.

use ratekeeper_core::{Cost, Guarantees, Limit, LimitParams, Micros, Scope};

use crate::charge::{CHARGES_MAX, Charge, OwnedCharge};
use crate::reservation::ReservationRecord;

/// The version of the encoding.
const VERSION: u8 = 1;
/// The flag of a charge to a limit with guarantees, which follow the charge. Others are whether denied requests count.
const GUARANTEED: u8 = 2;

impl ReservationRecord {
    /// Encodes the record. A rate is written as text, so that every form of it can be read again.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.charged_at.get().to_be_bytes());
        bytes.extend(self.estimate.get().to_be_bytes());
        for charge in &self.charges {
            let charge = charge.as_charge();
            let limit = charge.limit();
            bytes.push(match charge.class {
                Some(_) => GUARANTEED,
                None => u8::from(counts_rejected(limit)),
            });
            let rate = limit.rate().to_string();
            for part in [limit.algorithm().name(), &rate, limit.name(), charge.scope().name()] {
                push(&mut bytes, part.as_bytes());
            }
            push(&mut bytes, charge.key());
            if let Some(class) = charge.class {
                let guarantees = class.guarantees();
                bytes.extend([u8::from(charge.is_borrowed), guarantees.iter().len() as u8]);
                for (class, guarantee) in guarantees.iter() {
                    push(&mut bytes, class.as_bytes());
                    push(&mut bytes, guarantee.rate().to_string().as_bytes());
                }
                let own = class.guarantee().and_then(|own| own.scope().class());
                bytes.push(u8::from(own.is_some()));
                push(&mut bytes, own.unwrap_or_default().as_bytes());
            }
        }
        bytes
    }

    /// Decodes a record. Returns `None` if it is not one of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes.strip_prefix(&[VERSION])?);
        let charged_at = Micros::new(reader.u64()?);
        let estimate = Cost::new(reader.u64()?)?;
        let mut charges = Vec::new();
        while !reader.0.is_empty() && charges.len() < CHARGES_MAX {
            charges.push(reader.charge(estimate)?);
        }
        let is_whole = reader.0.is_empty() && !charges.is_empty();
        is_whole.then_some(Self { charges, estimate, charged_at })
    }
}

fn counts_rejected(limit: &Limit) -> bool {
    matches!(limit.params(Cost::ONE), LimitParams::SlidingLog { count_rejected: true, .. })
}

/// Appends a part and its length.
fn push(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend((part.len() as u32).to_be_bytes());
    bytes.extend_from_slice(part);
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn part(&mut self) -> Option<&'b [u8]> {
        let len = u32::from_be_bytes(self.array()?);
        let (part, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(part)
    }

    fn text(&mut self) -> Option<&'b str> {
        std::str::from_utf8(self.part()?).ok()
    }

    fn charge(&mut self, cost: Cost) -> Option<OwnedCharge> {
        let [flag] = self.array()?;
        let (algorithm, rate) = (self.text()?.parse().ok()?, self.text()?.parse().ok()?);
        let limit = Limit::new(rate, algorithm).ok()?.named(self.text()?);
        let limit = if flag == 1 { limit.count_rejected().ok()? } else { limit };
        let (scope, key) = (Scope::new(self.text()?), self.part()?);
        if flag == GUARANTEED {
            return self.guaranteed(limit, key, cost);
        }
        let charge = Charge::new(&limit, key).within(&scope).cost(cost);
        Some(OwnedCharge::from(&charge))
    }

    fn guaranteed(&mut self, total: Limit, key: &[u8], cost: Cost) -> Option<OwnedCharge> {
        let [is_borrowed, count] = self.array()?;
        let mut parts = Vec::new();
        for _ in 0..count {
            parts.push((self.text()?, self.text()?.parse().ok()?));
        }
        let guarantees = Guarantees::new(total, parts).ok()?;
        let ([has_own], own) = (self.array()?, self.text()?);
        let class = match has_own {
            0 => guarantees.borrowing(),
            _ => guarantees.class(own),
        };
        let mut charge = Charge::guaranteed(&class, key).cost(cost);
        charge.is_borrowed = is_borrowed == 1;
        Some(OwnedCharge::from(&charge))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use ratekeeper_core::ALGORITHMS;

    use super::*;

    proptest! {
        #[test]
        fn a_record_is_decoded_as_it_was_encoded(
            key in proptest::collection::vec(any::<u8>(), 0..40),
            names in proptest::collection::vec(".{0,12}", 1..5),
            count in 1_u64..1_000,
            period_ms in 1_u64..100_000,
            estimate in 1_u64..=1 << 53,
            at in any::<u64>(),
        ) {
            let rate = ratekeeper_core::Rate::new(count, Duration::from_millis(period_ms)).unwrap();
            let limits: Vec<_> = names
                .iter()
                .zip(ALGORITHMS)
                .map(|(name, algorithm)| Limit::new(rate, *algorithm).unwrap().named(name))
                .collect();
            let scope = Scope::new("another");
            let estimate = Cost::new(estimate).unwrap();
            let charges: Vec<_> =
                limits.iter().map(|limit| Charge::new(limit, &key[..]).within(&scope)).collect();
            let bytes = ReservationRecord::new(&charges, estimate, Micros::new(at)).encode();
            let record = ReservationRecord::decode(&bytes).unwrap();
            prop_assert_eq!((record.estimate, record.charged_at), (estimate, Micros::new(at)));
            prop_assert_eq!(record.charges.len(), charges.len());
            for (charge, read) in charges.iter().zip(&record.charges) {
                let read = read.as_charge();
                prop_assert!(read.shares_usage(charge));
                prop_assert_eq!(read.limit().rate(), charge.limit().rate());
                prop_assert_eq!(read.limit().name(), charge.limit().name());
            }
            for len in 0..bytes.len() {
                if let Some(short) = ReservationRecord::decode(&bytes[..len]) {
                    prop_assert!(short.charges.len() < charges.len());
                }
            }
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ReservationRecord::decode(&bytes);
            let _ = ReservationRecord::decode(&[&[VERSION], &bytes[..]].concat());
        }
    }

    #[test]
    fn a_calendar_rate_is_in_the_record() {
        for rate in ["1000/calendar day in Europe/Berlin", "5/calendar month", "1500/1500ms"] {
            let limit = Limit::fixed_window(rate).unwrap().named("tokens");
            let record =
                ReservationRecord::new(&[Charge::new(&limit, "k")], Cost::ONE, Micros::new(1));
            let read = ReservationRecord::decode(&record.encode()).unwrap();
            assert_eq!(read.charges[0].as_charge().limit().rate(), limit.rate());
        }
    }

    #[test]
    fn guarantees_are_in_the_record() {
        let total = Limit::token_bucket("350/s").unwrap().named("api");
        let rates = [("partner", "200/s"), ("", "50/3s burst 7")];
        let rates = rates.map(|(class, rate)| (class, rate.parse().unwrap()));
        let guarantees = Guarantees::new(total, rates).unwrap();
        for class in [guarantees.class("partner"), guarantees.class(""), guarantees.borrowing()] {
            for is_borrowed in [false, true] {
                let mut charge = Charge::guaranteed(&class, "eu");
                charge.is_borrowed = is_borrowed;
                let record = ReservationRecord::new(&[charge, charge], Cost::of(3), Micros::new(1));
                let read = ReservationRecord::decode(&record.encode()).unwrap();
                assert_eq!(read.charges.len(), 2);
                for read in read.charges.iter().map(OwnedCharge::as_charge) {
                    assert!(read.shares_usage(&charge) && read.class.unwrap().is_same(&class));
                    assert_eq!(read.is_borrowed, is_borrowed);
                }
            }
        }
    }

    #[test]
    fn what_a_limit_counts_is_in_the_record() {
        let limit = Limit::sliding_log("5/s").unwrap().count_rejected().unwrap();
        let record = ReservationRecord::new(&[Charge::new(&limit, "k")], Cost::ONE, Micros::new(1));
        let read = ReservationRecord::decode(&record.encode()).unwrap();
        assert!(counts_rejected(read.charges[0].as_charge().limit()));
    }
}
