//! nginx's `limit_req`, which refuses with a status and without any header.

use std::time::Instant;

use ratekeeper::client::Outbound;
use ratekeeper_testkit::{Nginx, NginxLimit};

use crate::support::*;

const REQUESTS: usize = 120;
const WORKERS: usize = 20;

fn nginx(rate: &str, burst: u32, status: u16) -> (Nginx, String) {
    let nginx = Nginx::with_limit(&NginxLimit { rate: rate.into(), burst, nodelay: true, status });
    let url = format!("http://{}/", nginx.address());
    (nginx, url)
}

#[tokio::test]
async fn a_client_at_the_rate_of_nginx_is_served() {
    for status in [429, 503] {
        let (nginx, url) = nginx("60r/s", 10, status);
        let outbound = Outbound::new("60/s burst 5 per host").unwrap();
        let client = client(&outbound);
        let results = send_all(&client, WORKERS, REQUESTS, move |_| get(&url)).await;
        let stats = outbound.stats();
        let counts = nginx.wait_for_limit_counts(stats.attempts);
        println!("nginx {status} at its rate: {counts:?}");
        assert_eq!(served(&results), REQUESTS, "{results:?}");
        assert_eq!(counts.accepted, REQUESTS as u64);
        // It takes a stall of the host of 100 ms to exceed the burst by one.
        assert!(counts.refused <= REQUESTS as u64 / 20, "{counts:?}");
    }
}

#[tokio::test]
async fn a_client_above_the_rate_of_nginx_retries_within_its_budget() {
    for status in [429, 503] {
        let (nginx, url) = nginx("20r/s", 5, status);
        // Nginx says nothing of its rate, so that only the budget bounds the retries.
        let outbound = Outbound::new("100/s burst 10 per host").unwrap();
        let began = Instant::now();
        let results = send_all(&client(&outbound), WORKERS, 2 * REQUESTS, move |_| get(&url)).await;
        let elapsed = began.elapsed();
        let counts = nginx.wait_for_limit_counts(outbound.stats().attempts);
        println!("nginx {status} above its rate: {counts:?} in {elapsed:?}");
        let arrivals = counts.accepted + counts.refused;
        assert_eq!(arrivals, outbound.stats().attempts);
        let retries = arrivals - 2 * REQUESTS as u64;
        assert!(retries > 0 && retries <= retries_max(2 * REQUESTS, elapsed), "{retries}");
        assert!(arrivals as f64 <= 10.0 + 100.0 * elapsed.as_secs_f64(), "{arrivals}");
        assert_eq!(served(&results) as u64, counts.accepted, "no response is lost");
    }
}
