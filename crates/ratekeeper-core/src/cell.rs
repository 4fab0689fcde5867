//! At most sixteen bytes of state: all that any algorithm but the log needs for one key.
//!
//! A cell can be read without its limit. That is what lets a store drop one that has become fresh
//! without knowing whose it was, and lets a key's limit change while its usage stays.

const TIME_BITS: u32 = 53;
/// The latest time a cell can hold; a debt beyond it saturates.
pub(crate) const TIME_MAX: u64 = (1 << TIME_BITS) - 1;
const LIFE_MASK: u64 = (1 << (64 - TIME_BITS)) - 1;
/// How many bits a handle has.
const HANDLE_BITS: u32 = 40;
/// Two numbers of an algorithm's own: this many bits are the lower one's.
const LOWER_BITS: u32 = 26;
const LOWER_MASK: u64 = (1 << LOWER_BITS) - 1;
/// How many bits of its own an algorithm has.
pub(crate) const DATA_BITS: u32 = 53;
pub(crate) const DATA_MASK: u64 = (1 << DATA_BITS) - 1;

/// The state of one key under one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// A time, in 53 bits, and above it how long after that the cell may still matter ([`Life`]). Or
    /// if it is [`SCALED`], a time in another unit.
    first: u64,
    /// The algorithm's own, in 53 bits, and what kind of cell it is.
    second: u64,
}

/// One of the two words of a cell ([`Cell::to_words`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellWord {
    /// A time and a life.
    First,
    /// The algorithm's own.
    Second,
}

/// The time has no life and is in parts of a microsecond; how many, is in the place of a fraction.
const SCALED: u64 = Cell::FIXED << 1;

impl Cell {
    /// The state of a key that was never seen.
    pub const FRESH: Cell = Cell { first: 0, second: 0 };

    /// Set in every second word that no rule may change alone.
    pub const FIXED: u64 = 1 << DATA_BITS;

    /// A first word that no cell has. Who takes it for a time finds it later than any.
    pub const NO_FIRST_WORD: u64 = Life::BEYOND << TIME_BITS;

    #[inline]
    pub(crate) fn new(time: u64, life: Life, data: u64) -> Self {
        debug_assert!(data >> DATA_BITS == 0);
        let are_counts = life != Life::ZERO && life != Life::HANDLE;
        let second = if are_counts { data } else { data | Self::FIXED };
        Self { first: Self::head(time, life), second }
    }

    /// A bucket's cell. The lower part of its data says in how many parts of a microsecond the time
    /// is.
    #[inline]
    pub(crate) fn scaled(time: u64, data: u64) -> Self {
        Self { first: time, second: data | SCALED | Self::FIXED }
    }

    /// The first word of a cell with this time and life.
    #[inline]
    pub(crate) fn head(time: u64, life: Life) -> u64 {
        debug_assert!(time <= TIME_MAX);
        life.code() << TIME_BITS | time
    }

    #[inline]
    pub(crate) fn time(self) -> u64 {
        match self.scale() {
            Some(scale) => self.first / scale,
            None => self.first & TIME_MAX,
        }
    }

    #[inline]
    pub(crate) fn life(self) -> Life {
        match self.scale() {
            Some(_) => Life::ZERO,
            None => Life((self.first >> TIME_BITS) as u16),
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

    /// A moment, in microseconds since the epoch, from which on this cell equals a fresh one.
    /// Never too early; later than the true moment by at most a few percent of a period.
    #[inline]
    pub fn fresh_by(self) -> u64 {
        self.time() + self.life().span() + 1
    }

    /// A cell that stands for state kept elsewhere, for example a [`Log`](crate::Log): when that
    /// is as good as fresh, where to find it (in 40 bits), and how much is in use.
    pub fn handle(fresh_by: u64, handle: u64, in_use: u64) -> Self {
        debug_assert!(handle >> HANDLE_BITS == 0);
        let in_use = in_use.min((1 << (DATA_BITS - HANDLE_BITS)) - 1);
        Self::new(fresh_by.min(TIME_MAX), Life::HANDLE, in_use << HANDLE_BITS | handle)
    }

    /// Where the state of a [`Cell::handle`] is kept; `None` for any other cell.
    pub fn to_handle(self) -> Option<u64> {
        let handle = self.data() & ((1 << HANDLE_BITS) - 1);
        (self.life() == Life::HANDLE).then_some(handle)
    }

    /// How much is in use at that moment, roughly: enough to tell a busy key from one that has
    /// hardly been seen, whatever their limits.
    pub fn in_use(self, now: u64) -> u64 {
        match self.life() {
            _ if now >= self.fresh_by() => 0,
            Life::ZERO => crate::algorithm::bucket_usage(self, now),
            Life::HANDLE => self.data() >> HANDLE_BITS,
            // A count, or two of which the older one is above.
            _ => self.data(),
        }
    }

    /// The word that a rule may change while the other one stays: the first by a
    /// [`TimeRule`](crate::TimeRule), the second by a [`CounterRule`](crate::CounterRule).
    #[inline]
    pub fn loose_word(self) -> Option<CellWord> {
        match self.life() {
            Life::ZERO if self.second != 0 => Some(CellWord::First),
            Life::ZERO | Life::HANDLE => None,
            _ => Some(CellWord::Second),
        }
    }

    /// The two words to keep in a store. If the second may be changed alone, it is not [`Cell::FIXED`] and
    /// its 10 highest bits are 0, for the store's own use.
    #[inline]
    pub fn to_words(self) -> [u64; 2] {
        [self.first, self.second]
    }

    /// The cell that [`Cell::to_words`] gave.
    #[inline]
    pub fn from_words([first, second]: [u64; 2]) -> Self {
        let is_fixed = second & Self::FIXED != 0;
        Self { first, second: if is_fixed { second } else { second & DATA_MASK } }
    }

    /// The same in its parts, for a store that keeps fewer bits: the time, the life (11 bits), and
    /// the algorithm's own, 27 bits and 26. [`CellRule::cell_from_parts`](crate::CellRule) takes them.
    pub fn to_parts(self) -> [u64; 4] {
        let data = self.data();
        [self.time(), self.life().code(), data >> LOWER_BITS, data & LOWER_MASK]
    }

    /// The cell that [`Cell::to_parts`] gave; parts that are too large lose what is too much.
    pub(crate) fn from_parts([time, life, upper, lower]: [u64; 4]) -> Self {
        let data = upper << LOWER_BITS | lower & LOWER_MASK;
        let life = Life((life & LIFE_MASK) as u16);
        Self::new(time & TIME_MAX, life, data & DATA_MASK)
    }
}

/// A span of time in 11 bits: a 6-bit exponent and 5 bits of fraction, rounded up (by 3% at most).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life(u16);

impl Life {
    pub(crate) const ZERO: Life = Life(0);
    /// No span is this long; it marks a handle and counts as none.
    const HANDLE: Life = Life(LIFE_MASK as u16);
    /// The code of 142 years, which no limit needs.
    const BEYOND: u64 = 0x600;

    /// The shortest representable span that is at least `us`.
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
            _ if self == Self::HANDLE => 0,
            _ => (32 + fraction) << (exponent - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_never_shorter_than_asked_and_at_most_a_32nd_longer() {
        let around = |x: u64| [x.saturating_sub(1), x, x + 1];
        for us in (0..53).flat_map(|bit| around(1 << bit)).chain(0..5_000).chain([86_400_000_000]) {
            let span = Life::at_least(us).span();
            assert!(span >= us, "{us} became {span}");
            assert!(span - us <= us / 32 + 1, "{us} became {span}");
            // Twice the longest period is 20 years.
            assert!(Life::at_least(us).code() < Life::BEYOND || us > 100 * 366 * 86_400_000_000);
        }
    }

    #[test]
    fn words_round_trip() {
        let cell = Cell::new(TIME_MAX, Life::at_least(120_000_000), (1 << DATA_BITS) - 1);
        assert_eq!(Cell::from_words(cell.to_words()), cell);
        assert_eq!(cell.time(), TIME_MAX);
        assert_eq!(cell.to_handle(), None);
        let handle = Cell::handle(7, 8, 1 << 60);
        assert_eq!((handle.to_handle(), handle.fresh_by()), (Some(8), 8));
        assert_eq!((handle.in_use(7), handle.in_use(8)), (8_191, 0));
    }
}
