//! The scripts, put together from their parts.

use std::sync::{LazyLock, OnceLock};

use ratekeeper_core::LimitParams;
use redis::{Cmd, Script};

const HEAD: &str = include_str!("scripts/head.lua");
const ONE: &str = include_str!("scripts/one.lua");
const TWO: &str = include_str!("scripts/two.lua");
const SEVERAL: &str = include_str!("scripts/several.lua");
const MIXED: &str = include_str!("scripts/mixed.lua");

/// The algorithms: the letter of their parameters, the name of their function, and its file.
const PARTS: [(u8, &str, &str); 6] = [
    (b'w', "fixed_window", include_str!("scripts/fixed_window.lua")),
    (b'c', "sliding_counter", include_str!("scripts/sliding_counter.lua")),
    (b'b', "gcra", include_str!("scripts/gcra.lua")),
    (b'l', "sliding_log", include_str!("scripts/sliding_log.lua")),
    (b'd', "calendar_window", include_str!("scripts/calendar_window.lua")),
    (b'g', "guaranteed", include_str!("scripts/guaranteed.lua")),
];
/// The index of the part for limits with guarantees, which only `mixed.lua` calls.
const GUARANTEED: usize = 5;

/// A script for each set of algorithms.
type ScriptSets = [OnceLock<LuaScript>; SETS];
const SETS: usize = 1 << PARTS.len();

/// A script and its name on the server.
pub(super) struct LuaScript {
    source: String,
    script: Script,
    guarded: OnceLock<Box<LuaScript>>,
}

pub(super) static READ: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(&[include_str!("scripts/read.lua")]));
pub(super) static SWAP: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(&[include_str!("scripts/swap.lua")]));

pub(super) static ANNOUNCE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(&[include_str!("scripts/announce.lua")]));

pub(super) static ACQUIRE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(&[include_str!("scripts/acquire.lua")]));

impl LuaScript {
    fn new(parts: &[&str]) -> Self {
        let source = parts.join("\n");
        Self { script: Script::new(&source), source, guarded: OnceLock::new() }
    }

    /// The script behind a guard: a key after its own, without which it does nothing, and which it
    /// deletes.
    pub(super) fn guarded(&self) -> &Self {
        const GUARD_HEAD: &str = include_str!("scripts/guard_head.lua");
        const GUARD_TAIL: &str = include_str!("scripts/guard_tail.lua");
        self.guarded.get_or_init(|| Box::new(Self::new(&[GUARD_HEAD, &self.source, GUARD_TAIL])))
    }

    /// The script that decides on one charge.
    pub(super) fn for_one(params: &LimitParams) -> &'static Self {
        static SCRIPTS: [OnceLock<LuaScript>; PARTS.len()] =
            [const { OnceLock::new() }; PARTS.len()];
        let (_, name, source) = PARTS[part_of(params)];
        SCRIPTS[part_of(params)]
            .get_or_init(|| Self::new(&[HEAD, source, &format!("local decide = {name}"), ONE]))
    }

    /// The script that decides on two charges.
    pub(super) fn for_two(first: &LimitParams, second: &LimitParams) -> &'static Self {
        const PAIRS: usize = PARTS.len() * PARTS.len();
        static SCRIPTS: [OnceLock<LuaScript>; PAIRS] = [const { OnceLock::new() }; PAIRS];
        let (first, second) = (part_of(first), part_of(second));
        SCRIPTS[first * PARTS.len() + second].get_or_init(|| {
            let ((_, first, source), (_, second, other)) = (PARTS[first], PARTS[second]);
            let other = if first == second { "" } else { other };
            let names = format!("local first, second = {first}, {second}");
            Self::new(&[HEAD, source, other, &names, TWO])
        })
    }

    /// The script that decides on several charges.
    pub(super) fn for_several(params: impl Iterator<Item = LimitParams>) -> &'static Self {
        static SCRIPTS: ScriptSets = [const { OnceLock::new() }; SETS];
        Self::of_set(&SCRIPTS, params.map(|params| part_of(&params)), SEVERAL)
    }

    /// The script that decides on charges of different kinds, one or more. A charge to a limit with guarantees has no
    /// parameters here.
    pub(super) fn for_mixed(params: impl Iterator<Item = Option<LimitParams>>) -> &'static Self {
        static SCRIPTS: ScriptSets = [const { OnceLock::new() }; SETS];
        let parts = params.map(|params| params.map_or(GUARANTEED, |params| part_of(&params)));
        Self::of_set(&SCRIPTS, parts, MIXED)
    }

    /// A script with only the algorithms that these charges need: a call creates every function of its
    /// script.
    fn of_set(
        scripts: &'static ScriptSets,
        parts: impl Iterator<Item = usize>,
        body: &str,
    ) -> &'static Self {
        let set = parts.fold(0, |set, part| set | 1 << part);
        scripts[set].get_or_init(|| {
            let parts: Vec<_> = (0..PARTS.len()).filter(|part| set & 1 << part != 0).collect();
            let mut sources = vec![HEAD];
            sources.extend(parts.iter().map(|part| PARTS[*part].2));
            let choices = parts.iter().map(|part| {
                let (letter, name, _) = PARTS[*part];
                format!("  if letter == {letter} then return {name} end")
            });
            let choices = choices.collect::<Vec<_>>().join("\n");
            let choose = format!("local function choose(letter)\n{choices}\nend");
            sources.extend([&choose, body]);
            Self::new(&sources)
        })
    }

    /// The call of the script by its hash, or with its source for a server that does not have it.
    pub(super) fn call(&self, by_hash: bool, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
        let mut cmd = Cmd::new();
        match by_hash {
            true => cmd.arg("EVALSHA").arg(self.script.get_hash()),
            false => cmd.arg("EVAL").arg(&self.source),
        };
        cmd.arg(keys.len()).arg(keys).arg(args);
        cmd
    }
}

fn part_of(params: &LimitParams) -> usize {
    match params {
        LimitParams::FixedWindow { .. } => 0,
        LimitParams::SlidingCounter { .. } => 1,
        LimitParams::Gcra { .. } => 2,
        LimitParams::SlidingLog { .. } => 3,
        LimitParams::CalendarWindow { .. } => 4,
    }
}
