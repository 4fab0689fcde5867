//! Which decisions are looked at. All of them as long as there are few; of a flood, one in so many, which
//! then counts for as many.

use std::cell::Cell;

/// So many are looked at in each slot of time, by each thread.
const ALL: u32 = 16;
/// Beyond that, one in so many.
const ONE_IN: u32 = 128;
/// A slot has 2^10 microseconds.
const SLOT_BITS: u32 = 10;

/// One for each thread, so that nobody waits for anybody.
pub(super) struct Sampler {
    slot: Cell<u64>,
    /// How many more of this slot are looked at.
    left: Cell<u32>,
    /// How many are passed over before the next.
    skipped: Cell<u32>,
    random: Cell<u64>,
}

impl Sampler {
    pub(super) const fn new() -> Self {
        let random = Cell::new(0x9e37_79b9_7f4a_7c15);
        Self { slot: Cell::new(u64::MAX), left: Cell::new(0), skipped: Cell::new(0), random }
    }

    /// How many this one counts for; 0 if it is not looked at.
    #[inline]
    pub(super) fn weight(&self, now_us: u64) -> u64 {
        let slot = now_us >> SLOT_BITS;
        if slot != self.slot.replace(slot) {
            self.left.set(ALL);
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

    /// The next is as far away as chance has it: a client that asks for its keys in turns would be seen
    /// in part if we took turns too.
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
    fn a_flood_is_counted_in_full_though_few_of_it_are_looked_at() {
        let sampler = Sampler::new();
        let (mut counted, mut looked_at) = (0, 0);
        for _ in 0..1_000_000 {
            let weight = sampler.weight(5_000);
            counted += weight;
            looked_at += u64::from(weight > 0);
        }
        assert!(looked_at < 10_000, "{looked_at}");
        assert!((950_000..1_050_000).contains(&counted), "{counted}");
    }
}
