//! The 16 bytes of state that every algorithm but the sliding log keeps for one key.
//!
//! A cell can be decoded without its limit. So a store can drop a cell that has expired without
//! knowing its limit, and a limit can change while the usage of its keys carries over.

use crate::algorithm::CellWord;

const TIME_BITS: u32 = 53;
/// The latest time a cell can hold. A debt that lasts longer saturates.
pub(crate) const TIME_MAX: u64 = (1 << TIME_BITS) - 1;
const TTL_MASK: u64 = (1 << (64 - TIME_BITS)) - 1;
/// The size in bits of the lower one of the two numbers in an algorithm's data.
const LOWER_BITS: u32 = 26;
const LOWER_MASK: u64 = (1 << LOWER_BITS) - 1;
/// The size of an algorithm's data in bits.
pub(crate) const DATA_BITS: u32 = 53;
pub(crate) const DATA_MASK: u64 = (1 << DATA_BITS) - 1;

/// The state of one key under one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// A time, in 53 bits, and above it the time-to-live from then on ([`Ttl`]). If the cell is
    /// [`SCALED`], a time in another unit.
    first: u64,
    /// The algorithm's data, in 53 bits, and above it the flags of the encoding.
    second: u64,
}

/// A flag in the second word: the first word is a time in fractions of a microsecond, without a
/// time-to-live. The low bits of the data are the denominator.
const SCALED: u64 = Cell::SECOND_WORD_FIXED << 1;

impl Cell {
    /// The state of a key without requests.
    pub const EMPTY: Cell = Cell { first: 0, second: 0 };

    /// A flag in every second word that no algorithm updates alone.
    pub const SECOND_WORD_FIXED: u64 = 1 << DATA_BITS;

    /// The first word of every cell is less than this. A store may use other values as markers; read
    /// as times, they are later than any.
    pub const FIRST_WORD_END: u64 = Ttl::END << TIME_BITS;

    #[inline]
    pub(crate) fn new(time: u64, ttl: Ttl, data: u64) -> Self {
        debug_assert!(data >> DATA_BITS == 0);
        let second = if ttl == Ttl::ZERO { data | Self::SECOND_WORD_FIXED } else { data };
        Self { first: Self::first_word(time, ttl), second }
    }

    /// Returns a GCRA cell with a time in fractions of a microsecond. The low bits of the data are
    /// the denominator.
    #[inline]
    pub(crate) fn scaled(time: u64, data: u64) -> Self {
        Self { first: time, second: data | SCALED | Self::SECOND_WORD_FIXED }
    }

    /// Returns the first word of a cell with this time and time-to-live.
    #[inline]
    pub(crate) fn first_word(time: u64, ttl: Ttl) -> u64 {
        debug_assert!(time <= TIME_MAX);
        ttl.code() << TIME_BITS | time
    }

    #[inline]
    pub(crate) fn time(self) -> u64 {
        match self.scale() {
            Some(scale) => self.first / scale,
            None => self.first & TIME_MAX,
        }
    }

    #[inline]
    pub(crate) fn ttl(self) -> Ttl {
        match self.scale() {
            Some(_) => Ttl::ZERO,
            None => Ttl((self.first >> TIME_BITS) as u16),
        }
    }

    #[inline]
    pub(crate) fn data(self) -> u64 {
        let data = self.second & DATA_MASK;
        match self.scale() {
            Some(scale) => data & !LOWER_MASK | (self.first % scale),
            None => data,
        }
    }

    #[inline]
    fn scale(self) -> Option<u64> {
        (self.second & SCALED != 0).then(|| (self.second & LOWER_MASK).max(1))
    }

    /// Returns a time, in microseconds since the epoch, from which on this cell is equivalent to an
    /// empty one. It is never too early, and too late by at most a few percent of the period.
    #[inline]
    #[must_use]
    pub fn expires_at(self) -> u64 {
        self.time() + self.ttl().span() + 1
    }

    /// Returns roughly how much is in use at `now`: precise enough to distinguish busy keys from quiet
    /// ones, whatever their limits.
    #[must_use]
    pub fn usage(self, now: u64) -> u64 {
        match self.ttl() {
            _ if now >= self.expires_at() => 0,
            Ttl::ZERO => crate::algorithm::gcra_usage(self, now),
            // One count, or two with the previous one in the high bits.
            _ => self.data(),
        }
    }

    /// Returns the word that a check may update alone
    /// ([`CompareAndSwap`](crate::algorithm::CompareAndSwap)).
    #[inline]
    #[must_use]
    pub fn updatable_word(self) -> Option<CellWord> {
        match self.ttl() {
            Ttl::ZERO if self.second != 0 => Some(CellWord::First),
            Ttl::ZERO => None,
            _ => Some(CellWord::Second),
        }
    }

    /// Returns the two words to keep in a store. If the second word may be updated alone, it has no
    /// [`Cell::SECOND_WORD_FIXED`], and its 10 highest bits are 0 and free for the store.
    #[inline]
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        [self.first, self.second]
    }

    /// Assembles the cell of two words from [`Cell::to_words`]; ignores the bits of the store.
    #[inline]
    #[must_use]
    pub fn from_words([first, second]: [u64; 2]) -> Self {
        let is_fixed = second & Self::SECOND_WORD_FIXED != 0;
        Self { first, second: if is_fixed { second } else { second & DATA_MASK } }
    }

    /// Returns the cell in parts, for a store with a more compact encoding: the time, the code of
    /// the time-to-live (11 bits), and the two numbers of the algorithm (27 and 26 bits).
    /// [`CellEvaluator::cell_from_parts`](crate::CellEvaluator::cell_from_parts) is the inverse.
    #[must_use]
    pub fn to_parts(self) -> [u64; 4] {
        let data = self.data();
        [self.time(), self.ttl().code(), data >> LOWER_BITS, data & LOWER_MASK]
    }

    /// Assembles the cell of parts from [`Cell::to_parts`]; truncates parts that are too large.
    pub(crate) fn from_parts([time, ttl, upper, lower]: [u64; 4]) -> Self {
        let data = upper << LOWER_BITS | lower & LOWER_MASK;
        let ttl = Ttl((ttl & TTL_MASK) as u16);
        Self::new(time & TIME_MAX, ttl, data & DATA_MASK)
    }
}

/// A time-to-live in 11 bits, as a floating-point number: a 6-bit exponent and a 5-bit fraction,
/// rounded up (by 3% at most).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ttl(u16);

impl Ttl {
    pub(crate) const ZERO: Ttl = Ttl(0);
    /// The code of 142 years, which is more than any limit needs.
    const END: u64 = 0x600;

    /// Returns the shortest representable time-to-live that is at least `us`.
    pub(crate) fn at_least(us: u64) -> Self {
        debug_assert!(us <= TIME_MAX);
        if us < 32 {
            return Self(us as u16);
        }
        let shift = 58 - us.leading_zeros();
        let fraction = us.div_ceil(1 << shift); // 32..=64
        Self(((u64::from(shift) << 5) + fraction) as u16)
    }

    pub(crate) fn code(self) -> u64 {
        self.0.into()
    }

    #[inline]
    pub(crate) fn span(self) -> u64 {
        let (exponent, fraction) = (self.0 >> 5, u64::from(self.0 & 31));
        match exponent {
            0 => fraction,
            _ => (32 + fraction) << (exponent - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_never_shorter_than_requested_and_at_most_a_32nd_longer() {
        let around = |x: u64| [x.saturating_sub(1), x, x + 1];
        for us in (0..53).flat_map(|bit| around(1 << bit)).chain(0..5_000).chain([86_400_000_000]) {
            let span = Ttl::at_least(us).span();
            assert!(span >= us, "{us} became {span}");
            assert!(span - us <= us / 32 + 1, "{us} became {span}");
            // Twice the longest period is 20 years.
            assert!(Ttl::at_least(us).code() < Ttl::END || us > 100 * 366 * 86_400_000_000);
        }
    }

    #[test]
    fn words_round_trip() {
        let cell = Cell::new(TIME_MAX, Ttl::at_least(120_000_000), (1 << DATA_BITS) - 1);
        assert_eq!(Cell::from_words(cell.to_words()), cell);
        assert_eq!(cell.time(), TIME_MAX);
        assert!(cell.to_words()[0] < Cell::FIRST_WORD_END);
    }
}
