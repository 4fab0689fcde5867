//! What a slot of the table holds: two words with the state of one key, or a marker.
//!
//! The words are those of a [`Cell`], or a handle to a log, which no cell can be mistaken for. Two
//! markers say that a slot is being changed:
//!
//! - [`TAKEN`] in the first word, while a cell is out of its slot or being replaced;
//! - [`is_busy`] in the second word of a window cell, while the next window begins.
//!
//! Read as a TAT or as counts, both exceed every limit, so a check that meets one is denied, and
//! notices the marker when it commits.
//!
//! A window cell has a generation in the 10 highest bits of its second word. It counts how often the
//! cell was taken, so that the counts of one window are not mistaken for equal counts of another,
//! unless a thread is suspended between two instructions while exactly 1024 windows begin.

use ratekeeper_core::Cell;
use ratekeeper_core::algorithm::CellWord;

/// The first word of a slot whose cell is taken.
pub(super) const TAKEN: u64 = Cell::FIRST_WORD_END;

/// What every first word of a handle begins with. It is greater than [`TAKEN`] and than any cell's.
const LOG: u64 = 0x7ff << TIME_BITS;
const TIME_BITS: u32 = 53;
const TIME_MAX: u64 = (1 << TIME_BITS) - 1;
const HANDLE_BITS: u32 = 40;
/// One less than fits, so that no handle is mistaken for the busy marker.
const HANDLE_MAX: u64 = (1 << HANDLE_BITS) - 2;
/// How much of a log's usage is kept with its handle.
const USAGE_MAX: u64 = (1 << 13) - 1;

/// The lowest bit of a generation.
const GENERATION: u64 = 1 << 54;
/// All bits of a second word but its generation.
const BUSY: u64 = GENERATION - 1;

/// The time from which on a slot is free is rounded up to whole steps of this many microseconds.
const TICK_US: u64 = 1 << 10;

/// The state of one key: the cell of its algorithm, or a handle to its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotState {
    words: [u64; 2],
}

/// The state that lost its slot to another key; empty if there was none. It may own a log.
pub(super) type Displaced = SlotState;

impl SlotState {
    pub(super) const EMPTY: Self = Self { words: [0; 2] };

    /// Refers to a log: when it expires, where it is (in 40 bits), and its usage.
    pub(super) fn log(expires_at: u64, handle: u64, usage: u64) -> Self {
        debug_assert!(handle <= HANDLE_MAX);
        let second = Cell::SECOND_WORD_FIXED | usage.min(USAGE_MAX) << HANDLE_BITS | handle;
        Self { words: [LOG | expires_at.min(TIME_MAX), second] }
    }

    /// The handle of a log; `None` for a cell.
    pub(super) fn to_handle(self) -> Option<u64> {
        self.is_log().then_some(self.words[1] & ((1 << HANDLE_BITS) - 1))
    }

    #[inline]
    pub(super) fn cell(self) -> Cell {
        Cell::from_words(self.words)
    }

    #[inline]
    pub(super) fn to_words(self) -> [u64; 2] {
        self.words
    }

    /// Ignores the generation.
    #[inline]
    pub(super) fn from_words(words: [u64; 2]) -> Self {
        Self { words: Cell::from_words(words).to_words() }
    }

    /// The time from which on this state is equivalent to none.
    pub(super) fn expires_at(self) -> u64 {
        match self.is_log() {
            true => (self.words[0] & TIME_MAX) + 1,
            false => self.cell().expires_at(),
        }
    }

    /// Roughly how much is in use at `now`.
    pub(super) fn usage(self, now: u64) -> u64 {
        match self.is_log() {
            true if now >= self.expires_at() => 0,
            true => (self.words[1] & BUSY & !Cell::SECOND_WORD_FIXED) >> HANDLE_BITS,
            false => self.cell().usage(now),
        }
    }

    /// Since when the slot is free: a whole tick, or 0 if it was never used.
    pub(super) fn free_since(self) -> u64 {
        match self {
            Self::EMPTY => 0,
            state => state.expires_at().next_multiple_of(TICK_US),
        }
    }

    /// The word that a check may change without the lock of the line.
    #[inline]
    pub(super) fn updatable_word(self) -> Option<CellWord> {
        if self.is_log() { None } else { self.cell().updatable_word() }
    }

    #[inline]
    fn is_log(self) -> bool {
        self.words[0] >= LOG
    }
}

impl From<Cell> for SlotState {
    #[inline]
    fn from(cell: Cell) -> Self {
        Self { words: cell.to_words() }
    }
}

/// Returns whether these are the words of a window cell that is not taken.
#[inline]
pub(super) fn is_window_cell(words: [u64; 2]) -> bool {
    let is_fixed = words[1] & Cell::SECOND_WORD_FIXED != 0;
    let is_updatable = SlotState::from_words(words).updatable_word() == Some(CellWord::Second);
    is_updatable && !is_fixed && words[0] != TAKEN
}

/// Returns whether the second word says that its window cell is taken.
#[inline]
pub(super) fn is_busy(second: u64) -> bool {
    second & BUSY == BUSY
}

/// The generation of a second word.
#[inline]
pub(super) fn generation(second: u64) -> u64 {
    second & !BUSY
}

/// The second word that marks a window cell as taken, of the next generation.
#[inline]
pub(super) fn next_busy(second: u64) -> u64 {
    generation(second).wrapping_add(GENERATION) | BUSY
}

/// The second word that marks a window cell as taken, of the same generation.
#[inline]
pub(super) fn same_busy(second: u64) -> u64 {
    generation(second) | BUSY
}

#[cfg(all(test, not(loom)))]
mod tests {
    use ratekeeper_core::{ALGORITHMS, Cost, Evaluator, Limit, Micros};

    use super::*;

    /// Cells of every algorithm that has them, at the beginning and at the end of time.
    fn cells() -> Vec<Cell> {
        let mut cells = vec![Cell::EMPTY];
        for algorithm in ALGORITHMS {
            for rate in ["1/s", "999/7ms", "1031/1001ms", "67000000/10years"] {
                let limit = Limit::new(rate.parse().unwrap(), *algorithm);
                let Ok(Evaluator::Cell(evaluator)) = limit.as_ref().map(Limit::evaluator) else {
                    continue;
                };
                for now in [0, 1_700_000_000_000_000, Micros::MAX.get()] {
                    for cost in [1, 100, u64::MAX] {
                        let mut cell = Cell::EMPTY;
                        let cost = Cost::new(cost).unwrap();
                        let _ = evaluator.charge(&mut cell, cost, u64::MAX, Micros::new(now));
                        cells.push(cell);
                    }
                }
            }
        }
        cells
    }

    #[test]
    fn every_cell_is_kept_as_it_is_and_mistaken_for_no_marker() {
        for cell in cells() {
            let state = SlotState::from(cell);
            let [first, second] = state.to_words();
            assert_eq!(state.cell(), cell);
            assert_eq!(SlotState::from_words([first, second]), state);
            assert!(first < TAKEN && !is_busy(second) && state.to_handle().is_none(), "{cell:?}");
            assert_eq!(state.expires_at(), cell.expires_at());
            assert_eq!(state.updatable_word(), cell.updatable_word());
            let is_window = cell.updatable_word() == Some(CellWord::Second);
            assert_eq!(is_window_cell([first, second]), is_window, "{cell:?}");
            assert!(!is_window_cell([TAKEN, second]));
        }
    }

    #[test]
    fn the_generation_of_a_window_cell_changes_nothing_else() {
        for cell in cells() {
            let state = SlotState::from(cell);
            let [first, second] = state.to_words();
            if !is_window_cell([first, second]) {
                continue;
            }
            for n in [1, 2, 511, 1023] {
                let later = second | (n * GENERATION);
                assert_eq!(SlotState::from_words([first, later]), state);
                assert!(is_window_cell([first, later]) && !is_busy(later));
                assert_eq!(generation(later), n * GENERATION);
                assert!(is_busy(same_busy(later)) && is_busy(next_busy(later)));
                assert_eq!(generation(same_busy(later)), n * GENERATION);
                assert_eq!(generation(next_busy(later)), ((n + 1) % 1024) * GENERATION);
            }
        }
    }

    #[test]
    fn a_handle_to_a_log_is_no_cell() {
        for handle in [0, 8, HANDLE_MAX] {
            for (usage, kept) in [(0, 0), (7, 7), (USAGE_MAX, USAGE_MAX), (u64::MAX, USAGE_MAX)] {
                let state = SlotState::log(1_000, handle, usage);
                let words = state.to_words();
                assert_eq!(SlotState::from_words(words), state);
                assert_eq!((state.to_handle(), state.expires_at()), (Some(handle), 1_001));
                assert_eq!((state.usage(1_000), state.usage(1_001)), (kept, 0));
                assert_eq!(state.updatable_word(), None);
                assert!(!is_window_cell(words) && !is_busy(words[1]) && words[0] > TAKEN);
                assert_eq!(state.free_since(), TICK_US);
            }
        }
        assert_eq!(SlotState::EMPTY.free_since(), 0);
    }
}
