//! Which decisions are looked at. All of them as long as there are few; of a flood, one in so many, which
//! then counts for as many.

/// So many are looked at in each slot of time, by each thread.
const ALL: u32 = 32;
/// Beyond that, one in so many.
const ONE_IN: u64 = 64;
/// A slot has 2^10 microseconds.
const SLOT_BITS: u32 = 10;

/// One for each thread, so that nobody waits for anybody.
#[derive(Clone, Copy)]
pub(super) struct Sampler {
    slot: u64,
    seen: u32,
    random: u64,
}

impl Sampler {
    pub(super) const fn new() -> Self {
        Self { slot: 0, seen: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// How many this one counts for; 0 if it is not looked at.
    #[inline]
    pub(super) fn weight(&mut self, now_us: u64) -> u64 {
        let slot = now_us >> SLOT_BITS;
        if slot != self.slot {
            (self.slot, self.seen) = (slot, 0);
        }
        if self.seen < ALL {
            self.seen += 1;
            return 1;
        }
        // By chance, not by turns: a client that asks for its keys in turns would be seen in part.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if self.random.is_multiple_of(ONE_IN) { ONE_IN } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_all_counted() {
        let mut sampler = Sampler::new();
        assert!((0..10_000).all(|i| sampler.weight(i * 100) == 1));
    }

    #[test]
    fn a_flood_is_counted_in_full_though_few_of_it_are_looked_at() {
        let mut sampler = Sampler::new();
        let (mut counted, mut looked_at) = (0, 0);
        for _ in 0..1_000_000 {
            let weight = sampler.weight(5_000);
            counted += weight;
            looked_at += u64::from(weight > 0);
        }
        assert!(looked_at < 20_000, "{looked_at}");
        assert!((950_000..1_050_000).contains(&counted), "{counted}");
    }
}
