//! The keys that the Redis store writes, their expiry and size, and its authentication.

mod redis_support;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratekeeper_core::{ALGORITHMS, Algorithm, Cost, Limit, MaxDebt, Micros};
use ratekeeper_stores::{
    Charge, ChargeKind, Op, PermitName, PermitStore, RedisConfig, RedisStore, SharedStore, Store,
    StoreError, Verdict,
};
use ratekeeper_testkit::{RedisServer, wait_until};
use redis_support::{
    ACL, ACL_FLEET, NO_TIME, apply, as_user, block_on, check, make_user, store_with_long_deadline,
    used,
};

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

fn fresh_prefix() -> String {
    static PREFIXES: AtomicU64 = AtomicU64::new(0);
    format!("state{}", PREFIXES.fetch_add(1, Ordering::Relaxed))
}

fn fresh() -> RedisStore {
    store_with_long_deadline(&REDIS.url(), &fresh_prefix())
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

/// Returns the only key of that prefix.
fn key_of(prefix: &str) -> String {
    let keys = keys_of(prefix);
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

/// Returns when the server expires a key, in microseconds of its clock.
fn expires_at(key: &str) -> Option<u64> {
    match REDIS.command(&["PEXPIRETIME", key]).parse::<i64>().unwrap() {
        -1 => panic!("{key} has no expiry"),
        -2 => None,
        ms => Some(ms as u64 * 1_000),
    }
}

/// The state of one key, which can be evaluated at any time.
struct StoredState {
    prefix: String,
    store: RedisStore,
    in_given_time: RedisStore,
    limit: Limit,
}

impl StoredState {
    fn new(algorithm: Algorithm, rate: &str) -> StoredState {
        let prefix = fresh_prefix();
        let store = store_with_long_deadline(&REDIS.url(), &prefix);
        let config = RedisConfig::new(&REDIS.url()).with_prefix(&prefix).with_given_time();
        let in_given_time = config.with_deadline(Duration::from_secs(10)).open().unwrap();
        StoredState { prefix, store, in_given_time, limit: limit(algorithm, rate) }
    }

    fn act(&self, op: Op, n: u64) -> Verdict {
        let charge = Charge::new(&self.limit, "ann").cost(cost(n));
        block_on(apply(&self.store, op, &[charge])).unwrap()
    }

    fn peek_at(&self, key: &str, us: u64) -> Verdict {
        let charge = [Charge::new(&self.limit, key)];
        block_on(self.in_given_time.apply(Op::Peek, &charge, Micros::new(us))).unwrap()
    }

    /// Asserts that the state expires when it decides like a missing one, and not much later.
    fn assert_expiry(&self, verdict: &Verdict) {
        // It may have expired by now.
        let Some(until) = keys_of(&self.prefix).first().and_then(|key| expires_at(key)) else {
            return;
        };
        let (now, what) = (verdict.at().get(), &self.limit);
        let needed_until = now + verdict.reset_after().as_micros() as u64;
        assert!(until >= needed_until, "{what}: expires {} us early", needed_until - until);
        let window = self.limit.rate().period().as_micros() as u64;
        let most = needed_until + window + window / 16 + 5_000_000;
        assert!(until <= most, "{what}: expires {} us late", until - most);
        assert_eq!(
            self.peek_at("ann", until).decisions(),
            self.peek_at("new key", until).decisions(),
            "{what} when it expires"
        );
    }
}

const RATES: [&str; 5] = ["2/50ms", "3/s", "10/minute", "7/3h", "5/day"];

#[test]
fn every_state_expires_when_it_is_no_longer_needed() {
    for algorithm in ALGORITHMS {
        for rate in RATES {
            let state = StoredState::new(*algorithm, rate);
            for n in [1, 1, 2, 1] {
                let verdict = state.act(Op::Check, n);
                state.assert_expiry(&verdict);
            }
        }
    }
}

#[test]
fn debts_and_refunds_set_the_expiry_that_the_state_needs() {
    for algorithm in ALGORITHMS {
        for rate in RATES {
            let state = StoredState::new(*algorithm, rate);
            let first = state.act(Op::Check, 1);
            let debt = state.act(Op::Charge, 9);
            state.assert_expiry(&debt);
            let refund = state.act(Op::Refund { charged_at: debt.at() }, 9);
            state.assert_expiry(&refund);
            let _ = state.act(Op::Refund { charged_at: first.at() }, 1);
            let again = state.act(Op::Check, 1);
            state.assert_expiry(&again);
        }
    }
}

#[test]
fn each_of_several_limits_on_one_key_has_its_own_expiry() {
    let prefix = fresh_prefix();
    let store = store_with_long_deadline(&REDIS.url(), &prefix);
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
            let needed_until = verdict.at().get() + decision.reset_after().as_micros() as u64;
            assert!(expires_at(key).is_some_and(|until| until >= needed_until), "{limit}");
        }
    }
}

#[test]
fn an_expired_state_is_removed_and_its_key_starts_fresh() {
    let prefix = fresh_prefix();
    let store = store_with_long_deadline(&REDIS.url(), &prefix);
    let limits: Vec<_> = ALGORITHMS.iter().map(|one| limit(*one, "1/50ms")).collect();
    for limit in &limits {
        assert!(block_on(check(&store, Charge::new(limit, "ann"))).unwrap().allowed());
    }
    wait_until("the server expires the states", || keys_of(&prefix).is_empty());
    for limit in &limits {
        let verdict = block_on(check(&store, Charge::new(limit, "ann"))).unwrap();
        assert!(verdict.allowed() && verdict.remaining() == 0, "{limit}");
    }
}

fn memory_of(key: &str) -> u64 {
    REDIS.command(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).parse().unwrap()
}

/// Commands that write an alternative state under a key, or under several with that prefix.
type Alternative = fn(&str) -> Vec<Vec<String>>;

/// Returns the bytes of a state after this many checks with cost 1, and the bytes of an alternative
/// representation under the same key.
fn sizes(limit: &Limit, checks: u64, other: Alternative) -> [u64; 2] {
    let prefix = fresh_prefix();
    let config = RedisConfig::new(&REDIS.url()).with_prefix(&prefix).with_given_time();
    let store = config.with_deadline(Duration::from_secs(10)).open().unwrap();
    for i in 0..checks {
        // Spread over most of a minute.
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

/// What most limiters store for a token bucket.
fn hash(key: &str) -> Vec<Vec<String>> {
    let mut command = words("HSET KEY tokens 4.2319871234 ts 1721894400.123456");
    command[1] = key.to_string();
    vec![command]
}

/// What most limiters store for a sliding counter: a counter for each window.
fn two_counters(key: &str) -> Vec<Vec<String>> {
    let counter = |window: &str| vec!["SET".to_string(), format!("{key}:{window}"), "57".into()];
    vec![counter("28698240"), counter("28698241")]
}

fn one_counter(key: &str) -> Vec<Vec<String>> {
    vec![vec!["SET".to_string(), format!("{key}:28698240"), "57".into()]]
}

/// What most limiters store for a log: a member for each request, made unique.
fn sorted_set(key: &str) -> Vec<Vec<String>> {
    let mut command = vec!["ZADD".to_string(), key.to_string()];
    for i in 0..100 {
        let at = 1_721_894_400_000_000_u64 + i * 12_345;
        command.extend([at.to_string(), format!("{at}-{i}")]);
    }
    vec![command]
}

#[test]
fn states_are_smaller_than_the_usual_ones() {
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
    println!("| state | bytes | alternative | bytes |\n|---|---|---|---|");
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
fn prefixes_separate_fleets() {
    let one = Limit::token_bucket("1/day").unwrap();
    for prefix in [fresh_prefix(), fresh_prefix()] {
        let store = store_with_long_deadline(&REDIS.url(), &prefix);
        assert!(block_on(check(&store, Charge::new(&one, "ann"))).unwrap().allowed());
        assert!(!block_on(check(&store, Charge::new(&one, "ann"))).unwrap().allowed());
        key_of(&prefix);
    }
}

/// Overwrites a state with an invalid value.
fn corrupt(key: &str, how: &str) {
    REDIS.command(&["DEL", key]);
    match how {
        "list" => REDIS.command(&["RPUSH", key, "1"]),
        text => REDIS.command(&["SET", key, text]),
    };
}

#[test]
fn an_invalid_state_is_an_error_until_it_is_reset() {
    for algorithm in ALGORITHMS {
        let (prefix, limit) = (fresh_prefix(), limit(*algorithm, "5/minute"));
        let other = Limit::fixed_window("9/minute").unwrap().named("other");
        let store = store_with_long_deadline(&REDIS.url(), &prefix);
        let charge = Charge::new(&limit, "ann");
        assert!(block_on(check(&store, charge)).unwrap().allowed());
        let key = key_of(&prefix);
        for how in ["x", "garbage", "list", &"long ".repeat(30), "zzzzzzzzzz"] {
            let charges = [charge, Charge::new(&other, "ann")];
            let fresh = Charge::new(&other, "ann");
            for op in [Op::Check, Op::Peek, Op::Charge, Op::Refund { charged_at: NO_TIME }] {
                for charges in [&charges[..1], &charges[..]] {
                    corrupt(&key, how);
                    let result = block_on(apply(&store, op, charges));
                    assert!(
                        matches!(result, Err(StoreError::InvalidResponse(_))),
                        "{limit} {how} {op:?}: {result:?}"
                    );
                }
            }
            assert_eq!(
                block_on(used(&store, fresh)),
                0,
                "{limit} {how}: the other limit is not charged"
            );
            block_on(store.reset(&charge)).unwrap();
            let after_reset = block_on(check(&store, charge)).unwrap();
            assert_eq!(
                (after_reset.allowed(), after_reset.remaining()),
                (true, 4),
                "{limit} after {how}"
            );
        }
    }
}

#[test]
fn the_servers_clock_decides_whatever_the_callers_clocks_show() {
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

/// Uses every operation of a store.
async fn use_every_operation(store: &RedisStore) -> Result<(), StoreError> {
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
    store.renew_permit(&permit(1), SECOND).await?;
    store.release_permit(&permit(1)).await.map(drop)
}

#[test]
fn a_user_needs_the_documented_rights_and_no_others() {
    let server = RedisServer::start();
    let rights: Vec<_> = ACL.split_whitespace().chain(ACL_FLEET.split_whitespace()).collect();
    let try_with = |rights: &[&str]| {
        server.command(&["SCRIPT", "FLUSH"]);
        make_user(&server, rights);
        block_on(use_every_operation(&store_with_long_deadline(
            &as_user(&server.url()),
            "ratekeeper",
        )))
    };
    try_with(&rights).unwrap();
    for right in rights.iter().filter(|right| right.starts_with(['+', '~'])) {
        let fewer: Vec<_> = rights.iter().copied().filter(|other| other != right).collect();
        let result = try_with(&fewer);
        assert!(matches!(result, Err(StoreError::Misconfigured(_))), "{right}: {result:?}");
    }
}

#[test]
fn a_wrong_user_or_password_is_a_misconfiguration() {
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    let limit = Limit::token_bucket("5/s").unwrap();
    for login in ["", ":wrong@", "unknown:right@"] {
        let store = store_with_long_deadline(
            &format!("redis://{login}127.0.0.1:{}", server.port()),
            "ratekeeper",
        );
        let result = block_on(check(&store, Charge::new(&limit, "ann")));
        assert!(matches!(result, Err(StoreError::Misconfigured(_))), "{login:?}: {result:?}");
    }
    let store = store_with_long_deadline(&server.url(), "ratekeeper");
    assert!(block_on(check(&store, Charge::new(&limit, "ann"))).unwrap().allowed());
}

#[test]
fn tls_accepts_only_a_certificate_of_the_configured_ca() {
    let server = RedisServer::start_tls();
    let limit = Limit::token_bucket("5/s").unwrap();
    let config = || RedisConfig::new(&server.url()).with_deadline(Duration::from_secs(10));
    let trusting = config().with_ca_pem(server.ca_pem()).open().unwrap();
    assert!(block_on(check(&trusting, Charge::new(&limit, "ann"))).unwrap().allowed());
    let another = RedisServer::start_tls();
    for distrusting in [config(), config().with_ca_pem(another.ca_pem())] {
        let result = block_on(check(&distrusting.open().unwrap(), Charge::new(&limit, "ann")));
        assert!(matches!(result, Err(StoreError::Misconfigured(_))), "{result:?}");
    }
}

/// Overdrafts and looks beside charges: a script decides them all, so that others on a busy key do not
/// interfere.
#[test]
fn charges_of_every_kind_take_one_call() {
    let redis = RedisServer::start();
    let store = store_with_long_deadline(&redis.url(), "kinds");
    let calls = || {
        let stats = redis.command(&["INFO", "commandstats"]);
        let calls =
            stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u64>().unwrap())
    };
    for algorithm in ALGORITHMS.iter().filter(|algorithm| **algorithm != Algorithm::SlidingLog) {
        let (tokens, other) = (limit(*algorithm, "1000/hour"), limit(*algorithm, "9/hour"));
        let bounded = "2x".parse().unwrap();
        let report = Charge::new(&tokens, "k").cost(cost(600));
        let kinds = [
            vec![report.overdraft(MaxDebt::NONE)],
            vec![report.overdraft(bounded), Charge::new(&other, "k")],
            vec![Charge::new(&other, "k").kind(ChargeKind::Look), report],
        ];
        for charges in &kinds {
            let _ = block_on(apply(&store, Op::Check, charges)).unwrap(); // loads the script
            let before = calls();
            let _ = block_on(apply(&store, Op::Check, charges)).unwrap();
            assert_eq!(calls() - before, 1, "{algorithm}: {charges:?}");
        }
    }
}
