//! Windows of the calendar in Redis: the server's clock decides, whatever the caller's says.

mod redis_support;

use std::sync::LazyLock;

use ratekeeper_core::{Limit, Micros};
use ratekeeper_stores::{Charge, ChargeKind, Op, RedisStore, Store, Verdict};
use ratekeeper_testkit::RedisServer;
use redis_support::{NO_TIME, block_on, store_with_long_deadline};

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

const RATES: [&str; 4] = [
    "100/calendar hour in Asia/Kathmandu",
    "100/calendar day in Europe/Berlin",
    "100/calendar week",
    "100/calendar month from day 31 in America/Sao_Paulo",
];

fn limit(rate: &str) -> Limit {
    rate.parse().unwrap()
}

fn server_time() -> u64 {
    let time = REDIS.command(&["TIME"]);
    let mut parts = time.lines().map(|part| part.trim().parse::<u64>().unwrap());
    parts.next().unwrap() * 1_000_000 + parts.next().unwrap()
}

/// Wrong clocks: by a little, by a window or two, and by decades.
fn caller_times() -> Vec<Micros> {
    let (now, hour) = (server_time(), 3_600_000_000);
    let off = [0, 1, 30 * hour, 24 * 40 * hour];
    let early = off.iter().map(|off| Micros::new(now - off));
    let late = off.iter().map(|off| Micros::new(now + off));
    early.chain(late).chain([NO_TIME, Micros::MAX]).collect()
}

async fn apply(store: &RedisStore, op: Op, charges: &[Charge<'_>], now: Micros) -> Verdict {
    store.apply(op, charges, now).await.unwrap()
}

/// Asserts that the verdict is about the window that contains the server's time.
fn assert_window(verdict: &Verdict, limit: &Limit) {
    let window = limit.rate().calendar().unwrap().window_of(verdict.at());
    let left = window.end.since(verdict.at());
    assert_eq!(verdict.reset_after(), left, "{limit} at {}", verdict.at());
    assert!(verdict.at().get().abs_diff(server_time()) < 60_000_000, "the server's time");
}

#[test]
fn callers_with_wrong_clocks_count_in_the_servers_window() {
    for (i, rate) in RATES.into_iter().enumerate() {
        let limit = limit(rate);
        let store = store_with_long_deadline(&REDIS.url(), &format!("skewed{i}"));
        let charge = [Charge::new(&limit, "k")];
        block_on(async {
            let mut expected = 100;
            for now in caller_times() {
                expected -= 1;
                let checked = apply(&store, Op::Check, &charge, now).await;
                assert!(checked.allowed());
                assert_eq!(checked.remaining(), expected, "{limit} by a clock at {now}");
                assert_window(&checked, &limit);
                let peeked = apply(&store, Op::Peek, &charge, now).await;
                assert_eq!(peeked.remaining(), expected, "{limit}");
                let charged = apply(&store, Op::Charge, &charge, now).await;
                assert_eq!(charged.remaining(), expected - 1, "{limit}");
                let refund = Op::Refund { charged_at: charged.at() };
                let refunded = apply(&store, refund, &charge, now).await;
                assert_eq!(refunded.remaining(), expected, "{limit}");
                let overdraft = [charge[0].kind(ChargeKind::Overdraft)];
                expected -= 1;
                let checked = apply(&store, Op::Check, &overdraft, now).await;
                assert_eq!(checked.remaining(), expected, "{limit}");
            }
        });
    }
}

#[test]
fn several_limits_are_decided_in_the_servers_windows() {
    let calendar: Vec<_> = RATES.into_iter().map(limit).collect();
    let bucket: Limit = "100/hour".parse().unwrap();
    let charge = |limit| Charge::new(limit, "k");
    let store = store_with_long_deadline(&REDIS.url(), "several");
    block_on(async {
        let two = [charge(&bucket), charge(&calendar[0])];
        let all: Vec<_> = calendar.iter().map(charge).chain([charge(&bucket)]).collect();
        for (i, now) in caller_times().into_iter().enumerate() {
            let both = apply(&store, Op::Check, &two, now).await;
            assert_eq!(both.decisions()[1].remaining(), 99 - 2 * i as u64, "by a clock at {now}");
            let verdict = apply(&store, Op::Check, &all, now).await;
            for (limit, decision) in calendar.iter().zip(verdict.decisions()) {
                let end = limit.rate().calendar().unwrap().window_of(verdict.at()).end;
                assert_eq!(decision.reset_after(), end.since(verdict.at()), "{limit}");
            }
            assert_eq!(verdict.decisions()[1].remaining(), 99 - i as u64);
        }
    });
}

/// How often a server was called.
fn calls(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split_once("calls="));
    calls.map_or(0, |(_, rest)| rest.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn a_decision_is_one_call_and_two_if_the_clock_is_wrong_by_more_than_a_window() {
    // A server of its own, so that no other test calls it.
    let server = RedisServer::start();
    let limit = limit("100/calendar hour");
    let store = store_with_long_deadline(&server.url(), "calls");
    block_on(async {
        let charge = [Charge::new(&limit, "k")];
        let now = server_time();
        let _ = apply(&store, Op::Check, &charge, Micros::new(now)).await;
        for (off, expected) in [(0, 1), (3_600_000_000, 1), (4 * 3_600_000_000, 2)] {
            let before = calls(&server);
            let _ = apply(&store, Op::Check, &charge, Micros::new(now + off)).await;
            assert_eq!(calls(&server) - before, expected, "off by {off} us");
        }
    });
}

#[test]
fn a_state_expires_when_its_window_has_ended() {
    for (i, rate) in RATES.into_iter().enumerate() {
        let (limit, prefix) = (limit(rate), format!("expiry{i}"));
        let store = store_with_long_deadline(&REDIS.url(), &prefix);
        let charge = [Charge::new(&limit, "k")];
        for op in [Op::Check, Op::Charge, Op::refund_latest()] {
            let verdict = block_on(apply(&store, op, &charge, Micros::new(server_time())));
            let key = REDIS.command(&["KEYS", &format!("{prefix}:*")]);
            let until = REDIS.command(&["PEXPIRETIME", key.trim()]).parse::<u64>().unwrap() * 1_000;
            let end = limit.rate().calendar().unwrap().window_of(verdict.at()).end.get();
            assert!((end..end + 10_000_000).contains(&until), "{limit}: {until}, {end}");
        }
    }
}
