//! The scripts, put together from their parts.

use std::sync::{LazyLock, OnceLock};

use ratekeeper_core::LimitParams;
use redis::{Cmd, Script};

const HEAD: &str = include_str!("scripts/head.lua");
const ONE: &str = include_str!("scripts/one.lua");
const TWO: &str = include_str!("scripts/two.lua");
const SEVERAL: &str = include_str!("scripts/several.lua");

/// The algorithms: the letter of their terms, the name of their function, and the file it is in.
const PARTS: [(u8, &str, &str); 4] = [
    (b'w', "fixed_window", include_str!("scripts/fixed_window.lua")),
    (b'c', "sliding_counter", include_str!("scripts/sliding_counter.lua")),
    (b'b', "bucket", include_str!("scripts/bucket.lua")),
    (b'l', "sliding_log", include_str!("scripts/sliding_log.lua")),
];

/// A script and its name on the server.
pub(super) struct Lua {
    source: String,
    script: Script,
}

pub(super) static READ: LazyLock<Lua> =
    LazyLock::new(|| Lua::new(&[include_str!("scripts/read.lua")]));
pub(super) static SWAP: LazyLock<Lua> =
    LazyLock::new(|| Lua::new(&[include_str!("scripts/swap.lua")]));

pub(super) static ANNOUNCE: LazyLock<Lua> =
    LazyLock::new(|| Lua::new(&[include_str!("scripts/announce.lua")]));

pub(super) static ACQUIRE: LazyLock<Lua> =
    LazyLock::new(|| Lua::new(&[include_str!("scripts/acquire.lua")]));

impl Lua {
    fn new(parts: &[&str]) -> Self {
        let source = parts.join("\n");
        Self { script: Script::new(&source), source }
    }

    /// The script that decides on one charge.
    pub(super) fn for_one(terms: &LimitParams) -> &'static Self {
        static SCRIPTS: [OnceLock<Lua>; PARTS.len()] = [const { OnceLock::new() }; PARTS.len()];
        let (_, name, source) = PARTS[part_of(terms)];
        SCRIPTS[part_of(terms)]
            .get_or_init(|| Self::new(&[HEAD, source, &format!("local decide = {name}"), ONE]))
    }

    /// The script that decides on two charges.
    pub(super) fn for_two(first: &LimitParams, second: &LimitParams) -> &'static Self {
        const PAIRS: usize = PARTS.len() * PARTS.len();
        static SCRIPTS: [OnceLock<Lua>; PAIRS] = [const { OnceLock::new() }; PAIRS];
        let (first, second) = (part_of(first), part_of(second));
        SCRIPTS[first * PARTS.len() + second].get_or_init(|| {
            let ((_, first, source), (_, second, other)) = (PARTS[first], PARTS[second]);
            let other = if first == second { "" } else { other };
            let names = format!("local first, second = {first}, {second}");
            Self::new(&[HEAD, source, other, &names, TWO])
        })
    }

    /// The script that decides on several charges, with the algorithms they need and no others: every
    /// function that is there is made anew at each call.
    pub(super) fn for_several(terms: impl Iterator<Item = LimitParams>) -> &'static Self {
        const SETS: usize = 1 << PARTS.len();
        static SCRIPTS: [OnceLock<Lua>; SETS] = [const { OnceLock::new() }; SETS];
        let set = terms.fold(0, |set, terms| set | 1 << part_of(&terms));
        SCRIPTS[set].get_or_init(|| {
            let parts: Vec<_> = (0..PARTS.len()).filter(|part| set & 1 << part != 0).collect();
            let mut sources = vec![HEAD];
            sources.extend(parts.iter().map(|part| PARTS[*part].2));
            let choices = parts.iter().map(|part| {
                let (letter, name, _) = PARTS[*part];
                format!("  if letter == {letter} then return {name} end")
            });
            let choices = choices.collect::<Vec<_>>().join("\n");
            let choose = format!("local function choose(letter)\n{choices}\nend");
            sources.extend([&choose, SEVERAL]);
            Self::new(&sources)
        })
    }

    /// The call of the script by its name, or with its source for a server that does not know it.
    pub(super) fn call(&self, by_name: bool, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
        let mut cmd = Cmd::new();
        match by_name {
            true => cmd.arg("EVALSHA").arg(self.script.get_hash()),
            false => cmd.arg("EVAL").arg(&self.source),
        };
        cmd.arg(keys.len()).arg(keys).arg(args);
        cmd
    }
}

fn part_of(terms: &LimitParams) -> usize {
    match terms {
        LimitParams::FixedWindow { .. } => 0,
        LimitParams::SlidingCounter { .. } => 1,
        LimitParams::Gcra { .. } => 2,
        LimitParams::SlidingLog { .. } => 3,
    }
}
