//! Which decisions a thread records: every refusal of a key and of a limit until there are many of them within a
//! second, and one admission in a thousand.

use std::cell::Cell;

/// How many refusals of a key a thread records in a period,
const KEY_MAX: u16 = 16;
/// and of a limit.
const LIMIT_MAX: u16 = 256;
/// How many admissions it records in a period.
const ADMISSIONS_MAX: u16 = 16;
/// One admission in this many is considered.
const ONE_IN: u32 = 1_024;
/// A period has 2^20 microseconds.
const PERIOD_BITS: u32 = 20;

/// How often something was recorded in the present period. Another one with the same slot takes it over, and then more
/// is recorded than intended, never less.
#[derive(Clone, Copy)]
struct Slot {
    hash: u64,
    period: u32,
    count: u16,
}

const UNUSED: Slot = Slot { hash: 0, period: u32::MAX, count: 0 };

/// The counts of one thread.
pub(super) struct Sampler {
    keys: [Cell<Slot>; 256],
    limits: [Cell<Slot>; 64],
    admissions: Cell<Slot>,
    /// How many admissions are skipped before the next one that is considered.
    skipped: Cell<u32>,
}

impl Sampler {
    pub(super) const fn new() -> Self {
        Self {
            keys: [const { Cell::new(UNUSED) }; 256],
            limits: [const { Cell::new(UNUSED) }; 64],
            admissions: Cell::new(UNUSED),
            skipped: Cell::new(0),
        }
    }

    /// Returns whether to record a refusal of this key, which is one of this limit.
    pub(super) fn takes_refusal(&self, key_hash: u64, limit_hash: u64, now_us: u64) -> bool {
        let period = period_of(now_us);
        let key = &self.keys[(key_hash >> 56) as usize];
        let limit = &self.limits[(limit_hash >> 58) as usize];
        takes(key, key_hash, period, KEY_MAX) && takes(limit, limit_hash, period, LIMIT_MAX)
    }

    /// Returns whether to consider an admission.
    #[inline]
    pub(super) fn is_admission_due(&self) -> bool {
        match self.skipped.get() {
            0 => {
                self.skipped.set(ONE_IN - 1);
                true
            }
            left => {
                self.skipped.set(left - 1);
                false
            }
        }
    }

    /// Returns whether to record an admission that is considered.
    pub(super) fn takes_admission(&self, now_us: u64) -> bool {
        takes(&self.admissions, 1, period_of(now_us), ADMISSIONS_MAX)
    }
}

fn period_of(now_us: u64) -> u32 {
    (now_us >> PERIOD_BITS) as u32
}

fn takes(slot: &Cell<Slot>, hash: u64, period: u32, max: u16) -> bool {
    let Slot { hash: of, period: in_period, count } = slot.get();
    let count = if (of, in_period) == (hash, period) { count } else { 0 };
    let is_taken = count < max;
    slot.set(Slot { hash, period, count: count + u16::from(is_taken) });
    is_taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_key_leaves_room_for_others() {
        let sampler = Sampler::new();
        let taken = (0..10_000).filter(|_| sampler.takes_refusal(1, 2, 0)).count();
        assert_eq!(taken, usize::from(KEY_MAX));
        assert!(sampler.takes_refusal(1 << 60, 2, 0), "another key of the limit");
        assert!(sampler.takes_refusal(1, 2, 1 << PERIOD_BITS), "the same key a second later");
    }

    #[test]
    fn a_flood_of_keys_of_one_limit_leaves_room_for_other_limits() {
        let sampler = Sampler::new();
        let key = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let taken = (0..10_000).filter(|i| sampler.takes_refusal(key(*i), 2, 0)).count();
        assert_eq!(taken, usize::from(LIMIT_MAX));
        assert!(sampler.takes_refusal(1, 1 << 60, 0));
    }

    #[test]
    fn few_admissions_are_recorded() {
        let sampler = Sampler::new();
        let due = (0..1_000_000).filter(|_| sampler.is_admission_due()).count();
        assert_eq!(due, 977);
        let taken = (0..due).filter(|_| sampler.takes_admission(0)).count();
        assert_eq!(taken, usize::from(ADMISSIONS_MAX));
    }
}
