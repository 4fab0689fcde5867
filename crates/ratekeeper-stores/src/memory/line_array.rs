//! The memory of the table: an array of cache lines, and the prefetch of one.

use super::line::Line;
#[cfg(any(test, loom))]
use super::line::SLOTS;
#[cfg(loom)]
use super::sync::{AtomicU32, AtomicU64};

#[cfg(not(loom))]
pub(super) use zeroed::LineArray;

#[cfg(not(loom))]
#[allow(unsafe_code, reason = "no safe allocation is both aligned to a line and zeroed lazily")]
mod zeroed {
    use std::ops::Deref;
    use std::ptr::NonNull;

    use super::super::sync::AtomicU64;
    use super::Line;

    /// As the system's allocator aligns anything.
    type Pair = [AtomicU64; 2];
    const PAIRS: usize = size_of::<Line>() / size_of::<Pair>();

    /// Zeroed lines. The operating system provides memory for those that are touched. An allocator
    /// that is asked for this alignment writes the zeros itself and so touches all of them; hence one
    /// line more is allocated, and the first aligned one is used.
    pub(in super::super) struct LineArray {
        allocation: NonNull<[Pair]>,
        first: NonNull<Line>,
        len: usize,
    }

    // SAFETY: it owns its allocation, in which there are only atomics.
    unsafe impl Send for LineArray {}
    // SAFETY: as above.
    unsafe impl Sync for LineArray {}

    impl LineArray {
        pub(in super::super) fn new(len: usize) -> Self {
            let pairs = (len + 1).saturating_mul(PAIRS);
            let allocation = Box::leak(bytemuck::zeroed_slice_box::<Pair>(pairs));
            let allocation = NonNull::from(allocation);
            let start = allocation.cast::<Pair>();
            let before = start.align_offset(align_of::<Line>());
            assert!(before <= PAIRS, "pairs can be aligned to a line");
            // SAFETY: `before` is at most `PAIRS`, which is what was allocated beyond `len` lines.
            let first = unsafe { start.add(before) }.cast();
            Self { allocation, first, len }
        }
    }

    impl Deref for LineArray {
        type Target = [Line];

        #[inline(always)]
        fn deref(&self) -> &[Line] {
            // SAFETY: `first` is aligned for a line, and `len` lines from there on are allocated until
            // `self` is dropped. A line is nothing but atomic integers without padding, of which
            // zero is a valid value, and the memory is never accessed as anything else.
            unsafe { NonNull::slice_from_raw_parts(self.first, self.len).as_ref() }
        }
    }

    impl Drop for LineArray {
        fn drop(&mut self) {
            // SAFETY: it came from a box, and no reference to it is left.
            drop(unsafe { Box::from_raw(self.allocation.as_ptr()) });
        }
    }
}

/// The same for the atomics of the model checker.
#[cfg(loom)]
pub(super) struct LineArray(Box<[Line]>);

#[cfg(loom)]
impl LineArray {
    pub(super) fn new(len: usize) -> Self {
        let line = |_| Line {
            header: AtomicU32::new(0),
            tags: [0; SLOTS].map(AtomicU32::new),
            firsts: [0; SLOTS].map(AtomicU64::new),
            seconds: [0; SLOTS].map(AtomicU64::new),
        };
        Self((0..len).map(line).collect())
    }
}

#[cfg(loom)]
impl std::ops::Deref for LineArray {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        &self.0
    }
}

/// Prefetches a line. A load would do so too, but the processor cannot retire any instruction before
/// a load that waits for memory.
#[inline(always)]
pub(super) fn prefetch(line: *const Line) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    #[allow(unsafe_code, reason = "the intrinsic is declared unsafe")]
    // SAFETY: a hint; it reads and writes nothing, wherever the line is.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), loom, miri))]
    let _ = line;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn lines_are_cache_lines_of_zeros() {
        assert_eq!((size_of::<Line>(), align_of::<Line>()), (64, 64));
        for len in (0..40).chain([1_000, 100_000]) {
            let lines = LineArray::new(len);
            assert_eq!(lines.len(), len);
            for line in lines.iter() {
                assert_eq!(std::ptr::from_ref(line).addr() % 64, 0);
                let words = line.firsts.iter().chain(&line.seconds).map(|word| word.load(Relaxed));
                let tags = line.tags.iter().chain([&line.header]).map(|tag| tag.load(Relaxed));
                assert!(words.chain(tags.map(u64::from)).all(|zero| zero == 0));
                line.seconds[SLOTS - 1].store(u64::MAX, Relaxed); // to the very end
            }
        }
    }
}
