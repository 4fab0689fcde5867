//! Many processes that share a limit: together they admit exactly as many requests as one would.

mod redis_support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use ratekeeper_core::{ALGORITHMS, Limit};
use ratekeeper_stores::{CHARGES_MAX, Charge, Op, RedisStore};
use ratekeeper_testkit::{RedisCluster, RedisServer};
use redis_support::{
    ACL, ACL_CLUSTER, apply, as_user, block_on, make_user, store_with_long_deadline, used,
};

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);
static CLUSTER: LazyLock<RedisCluster> = LazyLock::new(RedisCluster::start);

const PROCESSES: usize = 4;
const TASKS: usize = 4;
/// Checks of each task: enough to exceed the limit.
const CHECKS: usize = 60;

/// Returns limits that do not refill noticeably while a test runs, with their keys.
fn limits_of(case: &str) -> Vec<(Limit, &'static str)> {
    let bucket = |rate: &str| Limit::token_bucket(rate).unwrap();
    let counter = |rate: &str| Limit::sliding_counter(rate).unwrap();
    let log = |rate: &str| Limit::sliding_log(rate).unwrap();
    match case {
        "several" => {
            vec![(bucket("300/day"), "ann"), (counter("400/day"), "ann"), (log("500/day"), "all")]
        }
        "slots" => vec![
            (bucket("900/day"), "ann"),
            (log("900/day"), "bob"),
            (counter("200/day"), "carl"),
            (Limit::fixed_window("900/day").unwrap(), "dora"),
        ],
        name => {
            let algorithm = ALGORITHMS.iter().find(|one| one.to_string() == name).unwrap();
            vec![(Limit::new("500/day".parse().unwrap(), *algorithm).unwrap(), "ann")]
        }
    }
}

/// Sends checks, each without another one of the limits if there are several. Returns how often each
/// limit was charged by admitted requests.
async fn check_often(store: RedisStore, case: String, task: usize) -> Vec<u64> {
    let limits = limits_of(&case);
    let mut charged = vec![0; limits.len()];
    for i in 0..CHECKS {
        let omitted = (i + task) % (limits.len() + 1);
        let is_chosen = |i: &usize| limits.len() == 1 || *i != omitted;
        let chosen: Vec<_> = (0..limits.len()).filter(is_chosen).collect();
        let charges: Vec<_> =
            chosen.iter().map(|i| Charge::new(&limits[*i].0, limits[*i].1)).collect();
        if apply(&store, Op::Check, &charges).await.unwrap().allowed() {
            chosen.iter().for_each(|i| charged[*i] += 1);
        }
    }
    charged
}

async fn check_in_tasks(store: &RedisStore, case: &str) -> Vec<u64> {
    let start = |task| tokio::spawn(check_often(store.clone(), case.to_string(), task));
    let tasks: Vec<_> = (0..TASKS).map(start).collect();
    let mut sum = Vec::new();
    for task in tasks {
        sum = added(&sum, task.await.unwrap());
    }
    sum
}

fn added(sum: &[u64], more: Vec<u64>) -> Vec<u64> {
    if sum.is_empty() { more } else { sum.iter().zip(more).map(|(a, b)| a + b).collect() }
}

const URL: &str = "RATEKEEPER_FLEET_URL";
const CASE: &str = "RATEKEEPER_FLEET_CASE";

/// One process of the fleet: prints when it is ready, and starts when it reads a line.
#[test]
#[ignore = "run by the other tests, as a separate process"]
fn fleet_process() {
    let (Ok(url), Ok(case)) = (std::env::var(URL), std::env::var(CASE)) else { return };
    let store = store_with_long_deadline(&url, &case);
    block_on(store.ping()).unwrap();
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let charged = block_on(check_in_tasks(&store, &case));
    let charged: Vec<_> = charged.iter().map(ToString::to_string).collect();
    println!("\ncharged {}", charged.join(" "));
}

struct Member {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Member {
    fn start(url: &str, case: &str) -> Member {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fleet_process", "--ignored", "--nocapture"])
            .env(URL, url)
            .env(CASE, case)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = process.stdin.take().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Member { process, stdin, stdout }
    }

    /// Returns the rest of the next line that starts with this word.
    fn read_after(&mut self, word: &str) -> String {
        let mut lines = (&mut self.stdout).lines().map(Result::unwrap);
        let rest = lines.find_map(|line| line.strip_prefix(word).map(ToString::to_string));
        rest.unwrap_or_else(|| panic!("a process ended without printing {word}"))
    }
}

/// Runs a fleet of processes, and returns how often each limit was charged by admitted requests.
fn run_fleet(url: &str, case: &str) -> Vec<u64> {
    let mut fleet: Vec<_> = (0..PROCESSES).map(|_| Member::start(url, case)).collect();
    fleet.iter_mut().for_each(|member| drop(member.read_after("ready")));
    fleet.iter_mut().for_each(|member| member.stdin.write_all(b"\n").unwrap());
    let charged = fleet.iter_mut().map(|member| {
        let numbers = member.read_after("charged ");
        assert!(member.process.wait().unwrap().success());
        numbers.split(' ').map(|n| n.parse().unwrap()).collect()
    });
    charged.fold(Vec::new(), |sum, more| added(&sum, more))
}

/// Asserts that the counts on the server equal the admitted requests of every limit.
fn assert_exact(url: &str, case: &str, charged: &[u64]) {
    let store = store_with_long_deadline(url, case);
    for ((limit, key), charged) in limits_of(case).iter().zip(charged) {
        assert_eq!(block_on(used(&store, Charge::new(limit, *key))), *charged, "{limit} of {key}");
    }
}

#[test]
fn a_fleet_admits_exactly_the_limit() {
    for algorithm in ALGORITHMS {
        let case = algorithm.to_string();
        assert_eq!(run_fleet(&REDIS.url(), &case), [500], "{case}");
    }
}

#[test]
fn a_fleet_on_a_cluster_admits_exactly_the_limit() {
    assert_eq!(run_fleet(&CLUSTER.url(), "token_bucket"), [500]);
}

#[test]
fn several_limits_are_charged_all_or_none_by_a_fleet() {
    let url = REDIS.url();
    let charged = run_fleet(&url, "several");
    assert_exact(&url, "several", &charged);
    assert_eq!(charged[0], 300, "the strictest is used up");
    assert!(charged[1] <= 400 && charged[2] <= 500, "{charged:?}");
}

#[test]
fn limits_in_different_slots_are_charged_all_or_none_by_a_fleet() {
    let url = CLUSTER.url();
    let charged = run_fleet(&url, "slots");
    assert_exact(&url, "slots", &charged);
    assert!(charged[2] <= 200, "{charged:?}");
}

#[test]
fn a_denial_charges_nothing_in_any_slot() {
    let store = store_with_long_deadline(&CLUSTER.url(), "denial");
    let wide = Limit::token_bucket("100/day").unwrap();
    let tight = Limit::sliding_counter("1/day").unwrap();
    let keys = ["ann", "bob", "carl", "dora", "emil"];
    let mut charges: Vec<_> = keys.iter().map(|key| Charge::new(&wide, *key)).collect();
    charges.insert(3, Charge::new(&tight, "frida"));
    for i in 0..20 {
        let verdict = block_on(apply(&store, Op::Check, &charges)).unwrap();
        assert_eq!(verdict.allowed(), i == 0);
        assert_eq!(verdict.binding(), 3);
    }
    for charge in charges {
        assert_eq!(block_on(used(&store, charge)), 1);
    }
}

/// `CHARGES_MAX` keys, nearly all of them in different slots.
#[test]
fn a_denial_of_charges_max_charges_charges_nothing() {
    for url in [REDIS.url(), CLUSTER.url()] {
        let store = store_with_long_deadline(&url, "many");
        let wide = Limit::token_bucket("100/day").unwrap();
        let tight = Limit::sliding_counter("2/day").unwrap();
        let keys: Vec<_> = (0..CHARGES_MAX).map(|i| format!("user:{i}")).collect();
        let mut charges: Vec<_> = keys.iter().map(|key| Charge::new(&wide, key)).collect();
        charges[200] = Charge::new(&tight, &keys[200]);
        for i in 0..4 {
            let verdict = block_on(apply(&store, Op::Check, &charges)).unwrap();
            assert_eq!(verdict.allowed(), i < 2);
            assert_eq!(verdict.binding(), 200);
        }
        let peeked = block_on(apply(&store, Op::Peek, &charges)).unwrap();
        assert!(peeked.decisions().iter().all(|left| left.limit() - left.remaining() == 2));
        let refund = Op::Refund { charged_at: peeked.at() };
        let refunded = block_on(apply(&store, refund, &charges)).unwrap();
        assert!(refunded.decisions().iter().all(|left| left.limit() - left.remaining() == 1));
    }
}

#[test]
fn a_user_of_a_cluster_needs_the_documented_rights() {
    CLUSTER.nodes().iter().for_each(|node| make_user(node, &[ACL, ACL_CLUSTER]));
    let store = store_with_long_deadline(&as_user(&CLUSTER.url()), "ratekeeper");
    let limit = Limit::sliding_log("5/day").unwrap();
    for key in ["ann", "bob", "carl", "dora", "emil", "frida"] {
        let verdict = block_on(apply(&store, Op::Check, &[Charge::new(&limit, key)]));
        assert!(verdict.unwrap().allowed());
    }
}
