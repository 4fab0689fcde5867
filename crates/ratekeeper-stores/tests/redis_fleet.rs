//! Many processes and one limit: together they are let through exactly as often as one would be.

mod redis_support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use ratekeeper_core::{ALGORITHMS, Limit};
use ratekeeper_stores::{CHARGES_MAX, Charge, Op, RedisStore};
use ratekeeper_testkit::{RedisCluster, RedisServer};
use redis_support::{ACL, ACL_CLUSTER, apply, as_user, block_on, make_user, patient, used};

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);
static CLUSTER: LazyLock<RedisCluster> = LazyLock::new(RedisCluster::start);

const PROCESSES: usize = 4;
const TASKS: usize = 4;
/// More than enough for all of them to run into the limit.
const TURNS: usize = 60;

/// Limits that give nothing back while a test runs, and whom they are for.
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

/// Checks again and again, with one limit left out in turns where there are several. Returns how
/// often each limit was charged by requests that were let through.
async fn check_often(store: RedisStore, case: String, task: usize) -> Vec<u64> {
    let limits = limits_of(&case);
    let mut charged = vec![0; limits.len()];
    for turn in 0..TURNS {
        let left_out = (turn + task) % (limits.len() + 1);
        let chosen = |i: &usize| limits.len() == 1 || *i != left_out;
        let chosen: Vec<_> = (0..limits.len()).filter(chosen).collect();
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

/// One process of the fleet: says when it is ready, and begins when it is told to.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn one_of_the_fleet() {
    let (Ok(url), Ok(case)) = (std::env::var(URL), std::env::var(CASE)) else { return };
    let store = patient(&url, &case);
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
            .args(["--exact", "one_of_the_fleet", "--ignored", "--nocapture"])
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

    /// What follows the word on the line that begins with it.
    fn hear(&mut self, word: &str) -> String {
        let mut lines = (&mut self.stdout).lines().map(Result::unwrap);
        let rest = lines.find_map(|line| line.strip_prefix(word).map(ToString::to_string));
        rest.unwrap_or_else(|| panic!("a process ended without a word of {word}"))
    }
}

/// How often each limit was charged by requests that a fleet of processes was let through.
fn run_fleet(url: &str, case: &str) -> Vec<u64> {
    let mut fleet: Vec<_> = (0..PROCESSES).map(|_| Member::start(url, case)).collect();
    fleet.iter_mut().for_each(|member| drop(member.hear("ready")));
    fleet.iter_mut().for_each(|member| member.stdin.write_all(b"\n").unwrap());
    let charged = fleet.iter_mut().map(|member| {
        let numbers = member.hear("charged ");
        assert!(member.process.wait().unwrap().success());
        numbers.split(' ').map(|n| n.parse().unwrap()).collect()
    });
    charged.fold(Vec::new(), |sum, more| added(&sum, more))
}

/// What the server counts is what was let through, for every limit and to the last request.
fn assert_exact(url: &str, case: &str, charged: &[u64]) {
    let store = patient(url, case);
    for ((limit, key), charged) in limits_of(case).iter().zip(charged) {
        assert_eq!(block_on(used(&store, Charge::new(limit, *key))), *charged, "{limit} of {key}");
    }
}

#[test]
fn a_fleet_is_let_through_exactly_as_often_as_the_limit_says() {
    for algorithm in ALGORITHMS {
        let case = algorithm.to_string();
        assert_eq!(run_fleet(&REDIS.url(), &case), [500], "{case}");
    }
}

#[test]
fn a_fleet_in_a_cluster_is_let_through_exactly_as_often_as_the_limit_says() {
    assert_eq!(run_fleet(&CLUSTER.url(), "token_bucket"), [500]);
}

#[test]
fn several_limits_at_once_are_all_charged_or_none_in_a_fleet() {
    let url = REDIS.url();
    let charged = run_fleet(&url, "several");
    assert_exact(&url, "several", &charged);
    assert_eq!(charged[0], 300, "the strictest is used up");
    assert!(charged[1] <= 400 && charged[2] <= 500, "{charged:?}");
}

#[test]
fn limits_in_different_slots_are_all_charged_or_none_in_a_fleet() {
    let url = CLUSTER.url();
    let charged = run_fleet(&url, "slots");
    assert_exact(&url, "slots", &charged);
    assert!(charged[2] <= 200, "{charged:?}");
}

#[test]
fn a_denial_leaves_no_charge_behind_in_any_slot() {
    let store = patient(&CLUSTER.url(), "denial");
    let roomy = Limit::token_bucket("100/day").unwrap();
    let tight = Limit::sliding_counter("1/day").unwrap();
    let people = ["ann", "bob", "carl", "dora", "emil"];
    let mut charges: Vec<_> = people.iter().map(|key| Charge::new(&roomy, *key)).collect();
    charges.insert(3, Charge::new(&tight, "frida"));
    for turn in 0..20 {
        let verdict = block_on(apply(&store, Op::Check, &charges)).unwrap();
        assert_eq!(verdict.allowed(), turn == 0);
        assert_eq!(verdict.binding(), 3);
    }
    for charge in charges {
        assert_eq!(block_on(used(&store, charge)), 1);
    }
}

/// As many keys as one step takes, each in a slot of its own or nearly so.
#[test]
fn a_denial_leaves_no_charge_behind_with_as_many_keys_as_there_may_be() {
    for url in [REDIS.url(), CLUSTER.url()] {
        let store = patient(&url, "many");
        let roomy = Limit::token_bucket("100/day").unwrap();
        let tight = Limit::sliding_counter("2/day").unwrap();
        let keys: Vec<_> = (0..CHARGES_MAX).map(|i| format!("user:{i}")).collect();
        let mut charges: Vec<_> = keys.iter().map(|key| Charge::new(&roomy, key)).collect();
        charges[200] = Charge::new(&tight, &keys[200]);
        for turn in 0..4 {
            let verdict = block_on(apply(&store, Op::Check, &charges)).unwrap();
            assert_eq!(verdict.allowed(), turn < 2);
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
    let store = patient(&as_user(&CLUSTER.url()), "ratekeeper");
    let limit = Limit::sliding_log("5/day").unwrap();
    for key in ["ann", "bob", "carl", "dora", "emil", "frida"] {
        let verdict = block_on(apply(&store, Op::Check, &[Charge::new(&limit, key)]));
        assert!(verdict.unwrap().allowed());
    }
}
