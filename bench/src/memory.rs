//! Memory per key: the growth of a separate process for each contender.

use std::process::Command;

use crate::contenders::*;
use ratekeeper::{Charge, Limit, MemoryStore, Micros};

const KEYS: usize = 1_000_000;
const LOG_KEYS: usize = 20_000;
const LOG_ENTRIES: u64 = 100;

pub fn report() {
    println!(
        "\n## Memory: 1,000,000 keys of 17 bytes, resident bytes a key\n\n| | bytes a key |\n|---|---|"
    );
    for name in ["ratekeeper", "bare table", "governor", "sharded mutex map", "throttlecrab"] {
        println!("| {name} | {:.1} |", measure(name) / KEYS as f64);
    }
    let each = measure("log") / LOG_KEYS as f64;
    println!(
        "\nA sliding log of {LOG_ENTRIES} entries (100/minute, full): {each:.0} bytes a key, \
         {:.1} an entry over 64 a key.",
        (each - 64.0) / LOG_ENTRIES as f64
    );
}

/// Returns the bytes by which a process grows when it fills this contender.
fn measure(name: &str) -> f64 {
    let this = std::env::current_exe().expect("this program");
    let output = Command::new(this).args(["memory", name]).output().expect("a process");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number of bytes")
}

pub fn measure_here(name: &str) {
    let mode = Mode::Denied;
    let bytes = match name {
        "ratekeeper" => grown(|| fill(Ratekeeper::new(mode, KEYS))),
        "bare table" => grown(|| fill(BareTable::new(mode, KEYS, CachedClock))),
        "governor" => grown(|| fill(Governor::new(mode))),
        "sharded mutex map" => grown(|| fill(ShardedMutex::new(mode))),
        "throttlecrab" => grown(|| fill(Throttlecrab::new(mode, KEYS))),
        "log" => grown(fill_logs),
        _ => panic!("no contender is called {name}"),
    };
    println!("{bytes}");
}

fn fill<C: Contender>(contender: C) -> C {
    for i in 0..KEYS {
        let key = format!("customer:{i:08}");
        contender.check(&key);
    }
    contender
}

fn fill_logs() -> MemoryStore {
    let store = MemoryStore::with_capacity(LOG_KEYS);
    let limit = Limit::sliding_log("100/minute").unwrap();
    for i in 0..LOG_ENTRIES {
        for key in 0..LOG_KEYS {
            let now = Micros::new(1_700_000_000_000_000 + i * 590_000 + key as u64);
            assert!(
                store.check(&Charge::new(&limit, &format!("customer:{key:08}")), now).allowed()
            );
        }
    }
    store
}

fn grown<T>(make: impl FnOnce() -> T) -> usize {
    let before = resident();
    let made = make();
    let after = resident();
    drop(made);
    after - before
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    let kb: usize = line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("kB");
    kb * 1024
}
