//! The promises of client-side throttling.

use std::time::Duration;

use proptest::prelude::*;
use ratekeeper_control::{Micros, Throttle, ThrottleError};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_790_000_000 * SECOND;

fn throttled(k: f64, requests: u64, accepts: u64) -> Throttle {
    let mut throttle = Throttle::new(k, Throttle::DEFAULT_WINDOW).unwrap();
    (0..requests).for_each(|_| throttle.on_request(Micros::new(START)));
    (0..accepts).for_each(|_| throttle.on_accept(Micros::new(START)));
    throttle
}

proptest! {
    #[test]
    fn the_probability_is_that_of_the_formula(
        k in 1.0..4.0f64, requests in 0..500u64, accepts in 0..500u64,
    ) {
        let probability = throttled(k, requests, accepts).reject_probability(Micros::new(START));
        let expected = (requests as f64 - k * accepts as f64) / (requests as f64 + 1.0);
        prop_assert_eq!(probability, expected.max(0.0));
        prop_assert!((0.0..1.0).contains(&probability));
    }

    #[test]
    fn a_server_that_accepts_one_in_k_is_not_throttled(accepts in 0..200u64, random: u64) {
        let throttle = throttled(2.0, accepts * 2, accepts);
        prop_assert!(!throttle.rejects(Micros::new(START), random));
    }

    #[test]
    fn some_requests_are_always_sent(requests in 0..500u64) {
        prop_assert!(!throttled(1.0, requests, 0).rejects(Micros::new(START), u64::MAX));
    }

    #[test]
    fn times_in_any_order_are_counted(times in prop::collection::vec(any::<u64>(), 0..50)) {
        let mut throttle = Throttle::default();
        for (index, at) in times.iter().enumerate() {
            let now = Micros::new(*at);
            if index % 3 == 0 { throttle.on_accept(now) } else { throttle.on_request(now) }
            prop_assert!((0.0..1.0).contains(&throttle.reject_probability(now)));
        }
    }
}

#[test]
fn an_outage_is_forgotten_after_the_window() {
    let throttle = throttled(2.0, 1_000, 0);
    let at = |secs: u64| Micros::new(START + secs * SECOND);
    assert!(throttle.reject_probability(at(110)) > 0.99);
    assert_eq!(throttle.reject_probability(at(120)), 0.0);
}

#[test]
fn what_is_out_of_range_is_rejected() {
    for k in [0.0, 0.99, -1.0, f64::INFINITY] {
        let error = Throttle::new(k, Throttle::DEFAULT_WINDOW).unwrap_err();
        assert_eq!(error, ThrottleError::K(k));
    }
    assert!(Throttle::new(f64::NAN, Throttle::DEFAULT_WINDOW).is_err());
    let error = Throttle::new(2.0, Duration::ZERO).unwrap_err();
    assert_eq!(error, ThrottleError::Window(Duration::ZERO));
}
