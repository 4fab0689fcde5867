//! The scripts that take part: Ratekeeper's own, put together as its store does, and those that people
//! write.

use ratekeeper_core::{Cost, Limit, LimitParams};

macro_rules! part {
    ($file:literal) => {
        include_str!(concat!("../../../crates/ratekeeper-stores/src/redis/scripts/", $file))
    };
}

/// No number in a script is larger.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// What is in the keys of a script when it is measured.
#[derive(Clone, Copy, PartialEq)]
pub enum Load {
    /// Many keys, all of which have been seen before.
    Many,
    /// Logs that grow from nothing to about 80 entries.
    Filling,
    /// Logs of 100 entries that are full: all is denied.
    Full,
}

pub struct Contender {
    pub name: &'static str,
    pub load: Load,
    /// `None` for a plain command.
    source: Option<String>,
    /// With `__rand_int__` for what differs from request to request.
    keys: Vec<String>,
    args: Vec<String>,
}

impl Contender {
    fn peer(name: &'static str, source: &str, args: &[&str]) -> Self {
        Self {
            name,
            load: Load::Many,
            source: Some(source.to_string()),
            keys: vec!["ratelimit:api:__rand_int__".to_string()],
            args: args.iter().map(ToString::to_string).collect(),
        }
    }

    fn ours(name: &'static str, limits: &[Limit]) -> Self {
        let args = ["".to_string(), "c".to_string(), "x".repeat(packed(limits).len())];
        let ends = ["tapi", "wday"].iter().take(limits.len());
        Self {
            name,
            load: Load::Many,
            source: Some(with_terms(&source(limits), &packed(limits))),
            keys: ends.map(|end| format!("ratekeeper:1:12{{=__rand_int__}}{end}")).collect(),
            args: args.to_vec(),
        }
    }

    fn with_load(self, load: Load) -> Self {
        Self { load, ..self }
    }

    /// The script, if it is one.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// The command for `redis-benchmark`.
    pub fn command(&self, hash: &str) -> Vec<String> {
        let head = match self.source {
            Some(_) => vec!["EVALSHA".to_string(), hash.to_string(), self.keys.len().to_string()],
            None => vec!["INCR".to_string()],
        };
        [head, self.keys.clone(), self.args.clone()].concat()
    }
}

/// The limit that the token buckets have: nothing is denied.
pub fn bucket() -> Limit {
    Limit::token_bucket("100/s burst 1000").expect("a rate").named("api")
}

/// Of the same rate, and nothing is denied.
pub fn window() -> Limit {
    Limit::fixed_window("6000/minute").expect("a rate").named("api")
}

pub fn counter() -> Limit {
    Limit::sliding_counter("6000/minute").expect("a rate").named("api")
}

pub fn log() -> Limit {
    Limit::sliding_log("100/hour").expect("a rate").named("api")
}

pub const TOKEN_HASH: &str = include_str!("peers/token_hash.lua");
pub const TOKEN_HASH_ARGS: [&str; 3] = ["100", "1000", "1"];
pub const TWO_KEYS: &str = include_str!("peers/sliding_counter.lua");
pub const TWO_KEYS_ARGS: [&str; 2] = ["6000", "60000"];

pub const PLAIN_INCR: &str = "plain `INCR`";
pub const NAIVE_HASH: &str = "naive token bucket: a hash";
pub const BUCKET: &str = "**ratekeeper**, token bucket";
pub const WINDOW: &str = "**ratekeeper**, fixed window";
pub const COUNTER: &str = "**ratekeeper**, sliding counter";
pub const TWO_BUCKETS: &str = "**ratekeeper**, two token buckets";
pub const BUCKET_AND_WINDOW: &str = "**ratekeeper**, token bucket and fixed window";
pub const LOG: &str = "**ratekeeper**, sliding log up to 100";
pub const NAIVE_LOG: &str = "naive sliding log: a sorted set up to 100";

pub fn contenders() -> Vec<Contender> {
    let incr = Contender { source: None, ..Contender::peer(PLAIN_INCR, "", &[]) };
    let fixed_window = include_str!("peers/fixed_window.lua");
    let sorted_set = include_str!("peers/sorted_set.lua");
    let sorted_set =
        |name| Contender::peer(name, sorted_set, &["100", "3600000000", "__rand_int__"]);
    let fractions = Limit::token_bucket("99/s burst 1000").expect("a rate");
    vec![
        incr,
        Contender::peer("naive fixed window: `INCR`", fixed_window, &["6000", "60000"]),
        Contender::peer(
            "naive GCRA: `GET`, `SET`",
            include_str!("peers/gcra.lua"),
            &["10000", "10000000"],
        ),
        Contender::peer(NAIVE_HASH, TOKEN_HASH, &TOKEN_HASH_ARGS),
        Contender::peer("naive sliding counter: two keys", TWO_KEYS, &TWO_KEYS_ARGS),
        Contender::ours(WINDOW, &[window()]),
        Contender::ours(BUCKET, &[bucket()]),
        Contender::ours("**ratekeeper**, token bucket with fractions (99/s)", &[fractions]),
        Contender::ours(COUNTER, &[counter()]),
        Contender::ours(TWO_BUCKETS, &[bucket(), bucket()]),
        Contender::ours(BUCKET_AND_WINDOW, &[bucket(), window()]),
        sorted_set(NAIVE_LOG).with_load(Load::Filling),
        Contender::ours(LOG, &[log()]).with_load(Load::Filling),
        sorted_set("naive sliding log, full: denied").with_load(Load::Full),
        Contender::ours("**ratekeeper**, sliding log, full: denied", &[log()])
            .with_load(Load::Full),
    ]
}

/// As `script.rs` of the store puts it together.
pub fn source(limits: &[Limit]) -> String {
    let parts: Vec<_> = limits.iter().map(|limit| part_of(&limit.params(Cost::ONE))).collect();
    match parts[..] {
        [(name, source)] => {
            [part!("head.lua"), source, &format!("local decide = {name}"), part!("one.lua")]
                .join("\n")
        }
        [(first, source), (second, other)] => {
            let other = if first == second { "" } else { other };
            let names = format!("local first, second = {first}, {second}");
            [part!("head.lua"), source, other, &names, part!("two.lua")].join("\n")
        }
        _ => panic!("one limit or two"),
    }
}

fn part_of(terms: &LimitParams) -> (&'static str, &'static str) {
    match terms {
        LimitParams::FixedWindow { .. } => ("fixed_window", part!("fixed_window.lua")),
        LimitParams::SlidingCounter { .. } => ("sliding_counter", part!("sliding_counter.lua")),
        LimitParams::Gcra { .. } => ("gcra", part!("gcra.lua")),
        LimitParams::SlidingLog { .. } => ("sliding_log", part!("sliding_log.lua")),
        LimitParams::CalendarWindow { .. } => panic!("not measured"),
    }
}

/// The script with its terms written into it, which `redis-benchmark` cannot send as they are. It
/// sends as many other bytes instead, and the script looks at them, so that nothing is saved.
fn with_terms(source: &str, terms: &[u8]) -> String {
    let escaped: String = terms.iter().map(|byte| format!("\\{byte:03}")).collect();
    source.replace("ARGV[3]", &format!("(ARGV[3] and '{escaped}')"))
}

/// The terms of a charge of 1 to each limit, as `wire.rs` of the store packs them.
pub fn packed(limits: &[Limit]) -> Vec<u8> {
    let each = limits.iter().map(|limit| packed_one(&limit.params(Cost::ONE)));
    match limits.len() {
        1 => each.flatten().collect(),
        _ => each.flat_map(|terms| [vec![terms.len() as u8], terms].concat()).collect(),
    }
}

fn packed_one(terms: &LimitParams) -> Vec<u8> {
    match *terms {
        LimitParams::FixedWindow { window_us, limit, ttl_code } => {
            numbers(b'w', &[(window_us, 7), (limit, 7), (1, 7), (ttl_code, 2)])
        }
        LimitParams::SlidingCounter { window_us, limit, ttl_code } => {
            let is_small = limit.checked_mul(window_us).is_some_and(|n| n <= NUMBER_MAX);
            numbers(
                b'c',
                &[(window_us, 7), (limit, 7), (1, 7), (ttl_code, 2), (is_small.into(), 1)],
            )
        }
        LimitParams::Gcra { denominator, rate_code, increment, burst_tolerance } => {
            let scale = if denominator == 1 { 1 } else { 1 << 13 };
            assert!(denominator <= scale, "a limit with small fractions");
            let rate = [(scale, 4), (rate_code, 4), (denominator, 4)];
            let [t, tau] = [increment, burst_tolerance];
            numbers(
                b'b',
                &[&rate[..], &[(t.us, 7), (t.frac, 4), (tau.us, 7), (tau.frac, 4)]].concat(),
            )
        }
        LimitParams::SlidingLog { window_us, limit, count_rejected } => {
            numbers(b'l', &[(window_us, 7), (limit, 7), (1, 7), (count_rejected.into(), 1)])
        }
        LimitParams::CalendarWindow { .. } => panic!("not measured"),
    }
}

/// A letter, and numbers of the given lengths in bytes.
fn numbers(letter: u8, numbers: &[(u64, usize)]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(|(n, len)| n.to_be_bytes().into_iter().skip(8 - len));
    std::iter::once(letter).chain(bytes).collect()
}
