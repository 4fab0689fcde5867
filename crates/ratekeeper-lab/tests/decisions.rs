//! Decisions as lines of JSON: the exact text, and the same decisions as those of the core.

use std::collections::HashMap;

use proptest::prelude::*;
use ratekeeper_core::{ALGORITHMS, Cell, Cost, Decision, Evaluator, Limit, Micros, RequestLog};
use ratekeeper_lab::{Arrival, Simulation, Trace, write_decisions};

fn jsonl(limit: &Limit, trace: &str) -> String {
    let mut out = Vec::new();
    let simulation = Simulation::new(limit.clone(), 1_000);
    write_decisions(&simulation, Trace::new(trace.as_bytes()), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_token_bucket_admits_its_burst_and_then_its_rate() {
    let limit = Limit::token_bucket("5/s burst 10").unwrap();
    let trace = format!("at_us,key,cost\n{}{}", "0,a,1\n".repeat(10), "1000000,a,1\n".repeat(20));
    let line = |at_us: u64, allowed: bool, remaining: u64, retry: &str| {
        format!(
            "{{\"at_us\":{at_us},\"key\":\"a\",\"cost\":1,\"allowed\":{allowed},\"remaining\":{remaining},\"retry_after_us\":{retry},\"exceeds_capacity\":false,\"delay_us\":0}}\n"
        )
    };
    let mut expected = String::new();
    expected.extend((0..10).rev().map(|left| line(0, true, left, "null")));
    expected.extend((0..5).rev().map(|left| line(1_000_000, true, left, "null")));
    expected.extend((0..15).map(|_| line(1_000_000, false, 0, "200000")));
    assert_eq!(jsonl(&limit, &trace), expected);
}

#[test]
fn a_cost_above_the_capacity_has_no_retry() {
    let limit = Limit::sliding_log("5/s").unwrap();
    assert_eq!(
        jsonl(&limit, "at_us,key,cost\n0,\"q\"\"\n\",6\n"),
        "{\"at_us\":0,\"key\":\"q\\\"\\n\",\"cost\":6,\"allowed\":false,\"remaining\":5,\"retry_after_us\":null,\"exceeds_capacity\":true,\"delay_us\":0}\n"
    );
}

#[test]
fn a_leaky_bucket_reports_its_delay() {
    let limit = Limit::leaky_bucket("5/s").unwrap();
    let lines = jsonl(&limit, "at_us,key,cost\n0,a,1\n0,a,1\n");
    let last = lines.lines().last().unwrap();
    assert!(last.ends_with("\"exceeds_capacity\":false,\"delay_us\":200000}"), "{last}");
}

#[test]
fn decisions_before_an_invalid_line_are_written() {
    let simulation = Simulation::new("5/s".parse().unwrap(), 10);
    let trace = Trace::new("at_us,key,cost\n0,a,1\n0,a,0\n".as_bytes());
    let mut out = Vec::new();
    assert!(write_decisions(&simulation, trace, &mut out).is_err());
    assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
}

/// Calls the core with a state for each key, without a store.
#[derive(Default)]
struct CoreStates {
    cells: HashMap<String, Cell>,
    logs: HashMap<String, RequestLog>,
}

impl CoreStates {
    fn decide(&mut self, limit: &Limit, arrival: &Arrival) -> Decision {
        let Arrival { at, key, cost } = arrival.clone();
        match limit.evaluator() {
            Evaluator::Cell(rule) => rule.check(self.cells.entry(key).or_default(), cost, at),
            Evaluator::Log(rule) => rule.check(self.logs.entry(key).or_default(), cost, at),
        }
    }
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let one = (0..400_000u64, 0..4u8, 1..4u64);
    proptest::collection::vec(one, 1..200).prop_map(|steps| {
        let mut at_us = 0;
        let arrival = |(gap_us, key, cost): (u64, u8, u64)| {
            at_us += gap_us;
            Arrival { at: Micros::new(at_us), key: format!("k{key}"), cost: Cost::of(cost) }
        };
        steps.into_iter().map(arrival).collect()
    })
}

proptest! {
    #[test]
    fn a_simulation_decides_as_the_core_does(arrivals in arrivals(), count in 1..8u64) {
        for algorithm in ALGORITHMS {
            let limit = Limit::new(format!("{count}/s").parse().unwrap(), *algorithm).unwrap();
            let simulation = Simulation::new(limit.clone(), 100);
            let mut core = CoreStates::default();
            for arrival in &arrivals {
                let decided = simulation.decide(std::slice::from_ref(arrival)).unwrap();
                prop_assert_eq!(decided, [core.decide(&limit, arrival)]);
            }
        }
    }
}
