//! What the Redis store leaves on the server, and for how long; and whom it lets in.

mod redis_support;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_core::{ALGORITHMS, Algorithm, Cost, Limit, Micros};
use ratekeeper_stores::redis::PermitName;
use ratekeeper_stores::{
    Charge, Op, RedisConfig, RedisStore, SharedStore, Store, StoreError, Verdict,
};
use ratekeeper_testkit::{RedisServer, wait_until};
use redis_support::{
    ACL, ACL_FLEET, NO_TIME, apply, as_user, block_on, check, make_user, patient, used,
};

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

fn fresh_prefix() -> String {
    static PREFIXES: AtomicU64 = AtomicU64::new(0);
    format!("state{}", PREFIXES.fetch_add(1, Ordering::Relaxed))
}

fn fresh() -> RedisStore {
    patient(&REDIS.url(), &fresh_prefix())
}

fn limit(algorithm: Algorithm, rate: &str) -> Limit {
    Limit::new(rate.parse().unwrap(), algorithm).unwrap()
}

fn cost(n: u64) -> Cost {
    Cost::new(n).unwrap()
}

fn keys_of(prefix: &str) -> Vec<String> {
    let keys = REDIS.command(&["KEYS", &format!("{prefix}:*")]);
    keys.lines().filter(|key| !key.is_empty()).map(ToString::to_string).collect()
}

/// The only key of that prefix.
fn key_of(prefix: &str) -> String {
    let keys = keys_of(prefix);
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

/// When the server drops a key, in microseconds of its clock.
fn dropped_at(key: &str) -> Option<u64> {
    match REDIS.command(&["PEXPIRETIME", key]).parse::<i64>().unwrap() {
        -1 => panic!("{key} is kept forever"),
        -2 => None,
        ms => Some(ms as u64 * 1_000),
    }
}

/// One key of a prefix, and what it would decide at any time.
struct Kept {
    prefix: String,
    store: RedisStore,
    in_given_time: RedisStore,
    limit: Limit,
}

impl Kept {
    fn new(algorithm: Algorithm, rate: &str) -> Kept {
        let prefix = fresh_prefix();
        let store = patient(&REDIS.url(), &prefix);
        let config = RedisConfig::new(&REDIS.url()).with_prefix(&prefix).with_given_time();
        let in_given_time = config.with_deadline(Duration::from_secs(10)).open().unwrap();
        Kept { prefix, store, in_given_time, limit: limit(algorithm, rate) }
    }

    fn act(&self, op: Op, n: u64) -> Verdict {
        let charge = Charge::new(&self.limit, "ann").cost(cost(n));
        block_on(apply(&self.store, op, &[charge])).unwrap()
    }

    fn peek_at(&self, key: &str, us: u64) -> Verdict {
        let charge = [Charge::new(&self.limit, key)];
        block_on(self.in_given_time.apply(Op::Peek, &charge, Micros::new(us))).unwrap()
    }

    /// The state is kept until it decides like none, and not much longer.
    fn is_kept_as_long_as_it_matters(&self, verdict: &Verdict) {
        // It may have run out by now.
        let Some(until) = keys_of(&self.prefix).first().and_then(|key| dropped_at(key)) else {
            return;
        };
        let (now, what) = (verdict.at().get(), &self.limit);
        let matters_until = now + verdict.reset_after().as_micros() as u64;
        assert!(until >= matters_until, "{what}: dropped {} us early", matters_until - until);
        let window = self.limit.rate().period().as_micros() as u64;
        let most = matters_until + window + window / 16 + 5_000_000;
        assert!(until <= most, "{what}: kept {} us too long", until - most);
        assert_eq!(
            self.peek_at("ann", until).decisions(),
            self.peek_at("nobody", until).decisions(),
            "{what} when it is dropped"
        );
    }
}

const RATES: [&str; 5] = ["2/50ms", "3/s", "10/minute", "7/3h", "5/day"];

#[test]
fn every_state_is_kept_as_long_as_it_matters_and_never_forever() {
    for algorithm in ALGORITHMS {
        for rate in RATES {
            let kept = Kept::new(*algorithm, rate);
            for n in [1, 1, 2, 1] {
                let verdict = kept.act(Op::Check, n);
                kept.is_kept_as_long_as_it_matters(&verdict);
            }
        }
    }
}

#[test]
fn a_debt_is_kept_until_it_is_paid_and_a_refund_shortens_nothing_that_matters() {
    for algorithm in ALGORITHMS {
        for rate in RATES {
            let kept = Kept::new(*algorithm, rate);
            let first = kept.act(Op::Check, 1);
            let debt = kept.act(Op::Charge, 9);
            kept.is_kept_as_long_as_it_matters(&debt);
            let refund = kept.act(Op::Refund { charged_at: debt.at() }, 9);
            kept.is_kept_as_long_as_it_matters(&refund);
            let _ = kept.act(Op::Refund { charged_at: first.at() }, 1);
            let again = kept.act(Op::Check, 1);
            kept.is_kept_as_long_as_it_matters(&again);
        }
    }
}

#[test]
fn several_limits_on_one_key_are_each_kept_as_long_as_they_matter() {
    let prefix = fresh_prefix();
    let store = patient(&REDIS.url(), &prefix);
    let limits: Vec<_> = ALGORITHMS
        .iter()
        .flat_map(|algorithm| RATES[2..].iter().map(|rate| limit(*algorithm, rate)))
        .map(|limit| limit.clone().named(&format!("this is {limit}")))
        .collect();
    let charges: Vec<_> = limits.iter().map(|limit| Charge::new(limit, "ann")).collect();
    for _ in 0..3 {
        let verdict = block_on(apply(&store, Op::Check, &charges)).unwrap();
        let keys = keys_of(&prefix);
        assert_eq!(keys.len(), limits.len());
        for (limit, decision) in limits.iter().zip(verdict.decisions()) {
            let key = keys.iter().find(|key| key.ends_with(limit.name())).unwrap();
            let matters_until = verdict.at().get() + decision.reset_after().as_micros() as u64;
            assert!(dropped_at(key).is_some_and(|until| until >= matters_until), "{limit}");
        }
    }
}

#[test]
fn a_state_that_has_run_out_is_gone_and_its_key_as_good_as_new() {
    let prefix = fresh_prefix();
    let store = patient(&REDIS.url(), &prefix);
    let limits: Vec<_> = ALGORITHMS.iter().map(|one| limit(*one, "1/50ms")).collect();
    for limit in &limits {
        assert!(block_on(check(&store, Charge::new(limit, "ann"))).unwrap().allowed());
    }
    wait_until("the server drops the states", || keys_of(&prefix).is_empty());
    for limit in &limits {
        let verdict = block_on(check(&store, Charge::new(limit, "ann"))).unwrap();
        assert!(verdict.allowed() && verdict.remaining() == 0, "{limit}");
    }
}

fn memory_of(key: &str) -> u64 {
    REDIS.command(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).parse().unwrap()
}

/// Commands that keep something under a key, or several that begin with it.
type Keep = fn(&str) -> Vec<Vec<String>>;

/// The bytes of a state after so many checks of 1, and those of another way to keep the same under
/// the same name.
fn sizes(limit: &Limit, checks: u64, other: Keep) -> [u64; 2] {
    let prefix = fresh_prefix();
    let config = RedisConfig::new(&REDIS.url()).with_prefix(&prefix).with_given_time();
    let store = config.with_deadline(Duration::from_secs(10)).open().unwrap();
    for i in 0..checks {
        // Spread over most of a minute, as they would be.
        let now = Micros::new(1_721_894_400_123_456 + i * 592_345);
        let charge = [Charge::new(limit, "user:12345")];
        assert!(block_on(store.apply(Op::Check, &charge, now)).unwrap().allowed());
    }
    let key = key_of(&prefix);
    let size = memory_of(&key);
    REDIS.command(&["DEL", &key]);
    let commands = other(&key);
    for command in &commands {
        REDIS.command(&command.iter().map(String::as_str).collect::<Vec<_>>());
    }
    [size, commands.iter().map(|command| memory_of(&command[1])).sum()]
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(ToString::to_string).collect()
}

/// What most limiters keep for a token bucket.
fn hash(key: &str) -> Vec<Vec<String>> {
    let mut command = words("HSET KEY tokens 4.2319871234 ts 1721894400.123456");
    command[1] = key.to_string();
    vec![command]
}

/// What most limiters keep for a sliding counter: a counter for each window.
fn two_counters(key: &str) -> Vec<Vec<String>> {
    let counter = |window: &str| vec!["SET".to_string(), format!("{key}:{window}"), "57".into()];
    vec![counter("28698240"), counter("28698241")]
}

fn one_counter(key: &str) -> Vec<Vec<String>> {
    vec![vec!["SET".to_string(), format!("{key}:28698240"), "57".into()]]
}

/// What most limiters keep for a log: a member for each request, made unique.
fn sorted_set(key: &str) -> Vec<Vec<String>> {
    let mut command = vec!["ZADD".to_string(), key.to_string()];
    for i in 0..100 {
        let at = 1_721_894_400_000_000_u64 + i * 12_345;
        command.extend([at.to_string(), format!("{at}-{i}")]);
    }
    vec![command]
}

#[test]
fn states_are_small() {
    let bucket = |rate: &str| Limit::token_bucket(rate).unwrap().named("api");
    let window = Limit::fixed_window("100/minute").unwrap().named("api");
    let counter = Limit::sliding_counter("100/minute").unwrap().named("api");
    let log = Limit::sliding_log("100/minute").unwrap().named("api");
    let rows = [
        ("token bucket 10/s", "hash", sizes(&bucket("10/s"), 1, hash)),
        ("token bucket 3/s", "hash", sizes(&bucket("3/s"), 1, hash)),
        ("token bucket 10007/s", "hash", sizes(&bucket("10007/s"), 1, hash)),
        ("sliding counter", "two counters", sizes(&counter, 1, two_counters)),
        ("fixed window", "counter", sizes(&window, 1, one_counter)),
        ("log of 100", "sorted set", sizes(&log, 100, sorted_set)),
    ];
    println!("| state | bytes | instead | bytes |\n|---|---|---|---|");
    for (name, other, sizes) in &rows {
        println!("| {name} | {} | {other} | {} |", sizes[0], sizes[1]);
    }
    for (name, _, sizes) in &rows[..2] {
        assert!(4 * sizes[0] <= 3 * sizes[1], "{name}: {sizes:?}");
    }
    let [_, _, (_, _, fine), (_, _, counter), _, (_, _, log)] = &rows;
    assert!(fine[0] < fine[1], "{fine:?}");
    assert!(counter[0] < counter[1], "{counter:?}");
    assert!(log[0] <= 1_200 && 3 * log[0] < log[1], "{log:?}");
}

#[test]
fn prefixes_keep_fleets_apart() {
    let one = Limit::token_bucket("1/day").unwrap();
    for prefix in [fresh_prefix(), fresh_prefix()] {
        let store = patient(&REDIS.url(), &prefix);
        assert!(block_on(check(&store, Charge::new(&one, "ann"))).unwrap().allowed());
        assert!(!block_on(check(&store, Charge::new(&one, "ann"))).unwrap().allowed());
        key_of(&prefix);
    }
}

/// Puts something else where a state should be.
fn spoil(key: &str, how: &str) {
    REDIS.command(&["DEL", key]);
    match how {
        "list" => REDIS.command(&["RPUSH", key, "1"]),
        text => REDIS.command(&["SET", key, text]),
    };
}

#[test]
fn a_state_that_makes_no_sense_is_an_error_until_it_is_reset() {
    for algorithm in ALGORITHMS {
        let (prefix, limit) = (fresh_prefix(), limit(*algorithm, "5/minute"));
        let other = Limit::fixed_window("9/minute").unwrap().named("other");
        let store = patient(&REDIS.url(), &prefix);
        let charge = Charge::new(&limit, "ann");
        assert!(block_on(check(&store, charge)).unwrap().allowed());
        let key = key_of(&prefix);
        for how in ["x", "garbage", "list", &"long ".repeat(30), "zzzzzzzzzz"] {
            let charges = [charge, Charge::new(&other, "ann")];
            let fresh = Charge::new(&other, "ann");
            for op in [Op::Check, Op::Peek, Op::Charge, Op::Refund { charged_at: NO_TIME }] {
                for charges in [&charges[..1], &charges[..]] {
                    spoil(&key, how);
                    let answer = block_on(apply(&store, op, charges));
                    assert!(
                        matches!(answer, Err(StoreError::InvalidResponse(_))),
                        "{limit} {how} {op:?}: {answer:?}"
                    );
                }
            }
            assert_eq!(block_on(used(&store, fresh)), 0, "{limit} {how}: none is charged alone");
            block_on(store.reset(&charge)).unwrap();
            let healed = block_on(check(&store, charge)).unwrap();
            assert_eq!((healed.allowed(), healed.remaining()), (true, 4), "{limit} after {how}");
        }
    }
}

#[test]
fn the_servers_clock_decides_whatever_time_the_callers_think_it_is() {
    const HOUR: u64 = 3_600_000_000;
    for algorithm in ALGORITHMS {
        let (limit, store) = (limit(*algorithm, "20/day"), fresh());
        let charge = [Charge::new(&limit, "ann")];
        let mut admitted = 0;
        for i in 0..60 {
            let now = Micros::new(1_700_000_000_000_000 + i % 3 * HOUR);
            admitted +=
                u64::from(block_on(store.apply(Op::Check, &charge, now)).unwrap().allowed());
        }
        assert_eq!(admitted, 20, "{limit}");
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// All that a store does.
async fn everything(store: &RedisStore) -> Result<(), StoreError> {
    let limits: Vec<_> = ALGORITHMS.iter().map(|one| limit(*one, "50/minute")).collect();
    let charges: Vec<_> = limits.iter().map(|limit| Charge::new(limit, "ann")).collect();
    store.ping().await?;
    for charges in [&charges[..1], &charges[..2], &charges[..]] {
        let at = store.apply(Op::Check, charges, NO_TIME).await?.at();
        let _ = store.apply(Op::Peek, charges, NO_TIME).await?;
        let _ = store.apply(Op::Charge, charges, NO_TIME).await?;
        let _ = store.apply(Op::Refund { charged_at: at }, charges, NO_TIME).await?;
    }
    for charge in &charges {
        store.reset(charge).await?;
    }
    let permit = |id| PermitName { name: "jobs", key: b"ann", id };
    store.announce("node", SECOND).await?;
    store.acquire_permit(&permit(1), 1, SECOND).await?;
    store.acquire_permit(&permit(2), 1, SECOND).await?;
    store.renew_permit(&permit(1), 1, SECOND).await?;
    store.release_permit(&permit(1)).await.map(drop)
}

#[test]
fn a_user_needs_the_documented_rights_and_no_others() {
    let server = RedisServer::start();
    let rights: Vec<_> = ACL.split_whitespace().chain(ACL_FLEET.split_whitespace()).collect();
    let try_with = |rights: &[&str]| {
        server.command(&["SCRIPT", "FLUSH"]);
        make_user(&server, rights);
        block_on(everything(&patient(&as_user(&server.url()), "ratekeeper")))
    };
    try_with(&rights).unwrap();
    for right in rights.iter().filter(|right| right.starts_with(['+', '~'])) {
        let fewer: Vec<_> = rights.iter().copied().filter(|other| other != right).collect();
        let answer = try_with(&fewer);
        assert!(matches!(answer, Err(StoreError::Misconfigured(_))), "{right}: {answer:?}");
    }
}

#[test]
fn a_wrong_user_or_password_is_for_somebody_to_repair() {
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    let limit = Limit::token_bucket("5/s").unwrap();
    for login in ["", ":wrong@", "nobody:right@"] {
        let store = patient(&format!("redis://{login}127.0.0.1:{}", server.port()), "ratekeeper");
        let answer = block_on(check(&store, Charge::new(&limit, "ann")));
        assert!(matches!(answer, Err(StoreError::Misconfigured(_))), "{login:?}: {answer:?}");
    }
    let store = patient(&server.url(), "ratekeeper");
    assert!(block_on(check(&store, Charge::new(&limit, "ann"))).unwrap().allowed());
}

#[test]
fn tls_works_with_the_authority_that_signed_and_with_no_other() {
    let server = RedisServer::start_tls();
    let limit = Limit::token_bucket("5/s").unwrap();
    let config = || RedisConfig::new(&server.url()).with_deadline(Duration::from_secs(10));
    let trusting = config().with_ca_pem(server.ca_pem()).open().unwrap();
    assert!(block_on(check(&trusting, Charge::new(&limit, "ann"))).unwrap().allowed());
    let another = RedisServer::start_tls();
    for wary in [config(), config().with_ca_pem(another.ca_pem())] {
        let answer = block_on(check(&wary.open().unwrap(), Charge::new(&limit, "ann")));
        assert!(matches!(answer, Err(StoreError::Misconfigured(_))), "{answer:?}");
    }
}
