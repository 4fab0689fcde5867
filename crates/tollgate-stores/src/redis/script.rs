//! The scripts, put together from their parts.

use std::sync::LazyLock;

use redis::{Cmd, Script};
use tollgate_core::Terms;

const HEAD: &str = include_str!("scripts/head.lua");
const FIXED_WINDOW: &str = include_str!("scripts/fixed_window.lua");
const SLIDING_COUNTER: &str = include_str!("scripts/sliding_counter.lua");
const BUCKET: &str = include_str!("scripts/bucket.lua");
const SLIDING_LOG: &str = include_str!("scripts/sliding_log.lua");
const ONE: &str = include_str!("scripts/one.lua");
const SEVERAL: &str = include_str!("scripts/several.lua");

/// A script and its name on the server.
pub(super) struct Lua {
    source: String,
    script: Script,
}

macro_rules! scripts {
    ($($name:ident: $($part:expr),+;)*) => {
        $(pub(super) static $name: LazyLock<Lua> = LazyLock::new(|| Lua::new(&[$($part),+]));)*
    };
}

scripts! {
    CHECK_FIXED_WINDOW: HEAD, FIXED_WINDOW, "local decide = fixed_window", ONE;
    CHECK_SLIDING_COUNTER: HEAD, SLIDING_COUNTER, "local decide = sliding_counter", ONE;
    CHECK_BUCKET: HEAD, BUCKET, "local decide = bucket", ONE;
    CHECK_SLIDING_LOG: HEAD, SLIDING_LOG, "local decide = sliding_log", ONE;
    CHECK_SEVERAL: HEAD, FIXED_WINDOW, SLIDING_COUNTER, BUCKET, SLIDING_LOG, SEVERAL;
    READ: include_str!("scripts/read.lua");
    SWAP: include_str!("scripts/swap.lua");
}

impl Lua {
    fn new(parts: &[&str]) -> Self {
        let source = parts.join("\n");
        Self { script: Script::new(&source), source }
    }

    /// The script that decides on one charge.
    pub(super) fn for_one(terms: &Terms) -> &'static Self {
        match terms {
            Terms::FixedWindow { .. } => &CHECK_FIXED_WINDOW,
            Terms::SlidingCounter { .. } => &CHECK_SLIDING_COUNTER,
            Terms::Bucket { .. } => &CHECK_BUCKET,
            Terms::SlidingLog { .. } => &CHECK_SLIDING_LOG,
        }
    }

    /// The call of the script by its name, or with its source for a server that does not know it.
    pub(super) fn call(&self, by_name: bool, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
        let mut cmd = match by_name {
            true => Cmd::new().arg("EVALSHA").arg(self.script.get_hash()).to_owned(),
            false => Cmd::new().arg("EVAL").arg(&self.source).to_owned(),
        };
        cmd.arg(keys.len()).arg(keys).arg(args);
        cmd
    }
}
