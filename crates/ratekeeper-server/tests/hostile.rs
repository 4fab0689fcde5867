//! Every parser of untrusted input, given mutations of valid examples: `fuzz/` without a fuzzer.
#![allow(unsafe_code, reason = "an allocator that counts is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use ratekeeper_server::fuzzing::TARGETS;

/// Bytes that may be inserted anywhere.
const PIECES: &[&[u8]] = &[
    b"",
    b"\0",
    b"\n",
    b"\r\n",
    b" ",
    b"\xff",
    b"\xc3",
    b"%",
    b"%2f",
    b"..",
    b"*",
    b"&a ",
    b"*a",
    b"-1",
    b"0",
    b"4294967296",
    b"18446744073709551616",
    b"1e999",
    b"\"",
    b"\\",
    b"\\u0000",
    b"{",
    b"}",
    b"[[[[[[[[",
    b"]",
    b":",
    b",",
    b"null",
    b"\xe2\x80\xae",
    b"\xf0\x9f\x92\xa9",
];

fn fuzz_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Returns the seeds of a target; there is at least one.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = fuzz_folder().join("seeds").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let seeds: Vec<_> = entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

/// The largest input, in bytes.
const INPUT_MAX: usize = 256 << 10;

/// A change to an example.
#[derive(Clone, Debug)]
enum Mutation {
    /// Replaces bytes by a piece.
    Replace(Index, usize, &'static [u8]),
    FlipBits(Index, u8),
    /// Repeats a part.
    Repeat(Index, Index, usize),
    Truncate(Index),
}

impl Mutation {
    fn apply(&self, text: &mut Vec<u8>) {
        let at = |index: &Index, text: &[u8]| index.index(text.len() + 1);
        match self {
            Self::Replace(index, length, piece) => {
                let from = at(index, text);
                let to = (from + length).min(text.len());
                text.splice(from..to, piece.iter().copied());
            }
            Self::FlipBits(index, byte) if !text.is_empty() => {
                let at = index.index(text.len());
                text[at] ^= byte;
            }
            Self::FlipBits(..) => {}
            Self::Repeat(one, other, times) => {
                let (one, other) = (at(one, text), at(other, text));
                let part = &text[one.min(other)..one.max(other)];
                // Otherwise repeated repetition would grow to gigabytes before the target runs.
                let times = (*times).min(INPUT_MAX / part.len().max(1));
                let parts = part.repeat(times);
                text.splice(other..other, parts);
            }
            Self::Truncate(index) => text.truncate(at(index, text)),
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<Index>;
    prop_oneof![
        4 => (index(), 0..8_usize, select(PIECES)).prop_map(|(at, n, piece)| Mutation::Replace(at, n, piece)),
        4 => (index(), any::<u8>()).prop_map(|(at, byte)| Mutation::FlipBits(at, byte)),
        2 => (index(), index(), 1..4_usize).prop_map(|(a, b, n)| Mutation::Repeat(a, b, n)),
        1 => (index(), index(), 50..100_usize).prop_map(|(a, b, n)| Mutation::Repeat(a, b, n)),
        1 => index().prop_map(Mutation::Truncate),
    ]
}

/// The most memory that a target may have allocated at a time, in one run.
const PEAK_BYTES_MAX: isize = 64 << 20;

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and the most since the peak was reset.
    static ALLOCATED: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // A thread that ends may free after its counter is gone.
    let _ = ALLOCATED.try_with(|allocated| {
        let (live, peak) = allocated.get();
        allocated.set((live + bytes, peak.max(live + bytes)));
    });
}

// SAFETY: passes every call on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a target and returns the most bytes that it had allocated at a time.
fn peak_bytes_of(run: impl FnOnce()) -> isize {
    let before = ALLOCATED.with(|allocated| {
        let (live, _) = allocated.get();
        allocated.set((live, live));
        live
    });
    run();
    ALLOCATED.with(|allocated| allocated.get().1) - before
}

#[test]
fn every_target_has_a_fuzzer() {
    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        assert!(fuzz_folder().join(format!("fuzz_targets/{name}.rs")).is_file(), "{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}

#[test]
fn valid_examples_do_not_panic() {
    for (name, target) in TARGETS {
        seeds(name).iter().for_each(|seed| target(seed));
    }
}

#[test]
fn mutations_of_valid_examples_stay_within_the_memory_bound() {
    for (name, target) in TARGETS {
        let seeds = seeds(name);
        let config =
            ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) };
        proptest!(config, |(seed in select(seeds), mutations in prop::collection::vec(mutation(), 1..6))| {
            let mut text = seed;
            for mutation in &mutations {
                mutation.apply(&mut text);
                text.truncate(INPUT_MAX);
            }
            let peak = peak_bytes_of(|| target(&text));
            prop_assert!(peak < PEAK_BYTES_MAX, "{name} allocated {peak} bytes");
        });
    }
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
        TARGETS.iter().for_each(|(_, target)| target(&bytes));
    }
}
