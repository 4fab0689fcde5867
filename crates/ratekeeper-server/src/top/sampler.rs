//! Samples decisions: all of them while they are few; of a flood one in 128, which counts as 128.

use std::cell::Cell;

/// How many decisions a thread counts in each time slot before it samples.
const UNSAMPLED: u32 = 16;
/// Beyond that, one decision in this many is counted.
const ONE_IN: u32 = 128;
/// A time slot has 2^10 microseconds.
const SLOT_BITS: u32 = 10;

/// The sampler of one thread.
pub(super) struct Sampler {
    slot: Cell<u64>,
    /// How many more decisions of this slot are counted.
    left: Cell<u32>,
    /// How many decisions are skipped before the next one that is counted.
    skipped: Cell<u32>,
    random: Cell<u64>,
}

impl Sampler {
    pub(super) const fn new() -> Self {
        let random = Cell::new(0x9e37_79b9_7f4a_7c15);
        Self { slot: Cell::new(u64::MAX), left: Cell::new(0), skipped: Cell::new(0), random }
    }

    /// Returns what this decision counts as; 0 if it is skipped.
    #[inline]
    pub(super) fn weight(&self, now_us: u64) -> u64 {
        let slot = now_us >> SLOT_BITS;
        if slot != self.slot.replace(slot) {
            self.left.set(UNSAMPLED);
        }
        match (self.left.get(), self.skipped.get()) {
            (0, 0) => self.draw(),
            (0, skipped) => {
                self.skipped.set(skipped - 1);
                0
            }
            (left, _) => {
                self.left.set(left - 1);
                1
            }
        }
    }

    /// Draws the distance to the next decision at random: with a fixed distance, a client that uses its keys
    /// in a fixed order would be counted for some of them only.
    #[cold]
    fn draw(&self) -> u64 {
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        self.skipped.set((random % u64::from(2 * ONE_IN - 1)) as u32);
        u64::from(ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_all_counted() {
        let sampler = Sampler::new();
        assert!((0..10_000).all(|i| sampler.weight(i * 100) == 1));
    }

    #[test]
    fn a_flood_is_estimated_from_a_few_samples() {
        let sampler = Sampler::new();
        let (mut counted, mut sampled) = (0, 0);
        for _ in 0..1_000_000 {
            let weight = sampler.weight(5_000);
            counted += weight;
            sampled += u64::from(weight > 0);
        }
        assert!(sampled < 10_000, "{sampled}");
        assert!((950_000..1_050_000).contains(&counted), "{counted}");
    }
}
