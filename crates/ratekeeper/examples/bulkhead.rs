//! A bulkhead around a dependency: at most three calls to it at a time, so that a slow
//! dependency cannot block every task.
//!
//! ```sh
//! cargo run -p ratekeeper --example bulkhead --features tokio
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ratekeeper::ConcurrencyLimit;
use tokio::task::JoinSet;

/// A dependency that has become slow.
async fn recommendations(in_flight: &AtomicUsize, most: &AtomicUsize) {
    most.fetch_max(in_flight.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(200)).await;
    in_flight.fetch_sub(1, Ordering::Relaxed);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bulkhead = ConcurrencyLimit::new(3)?;
    let (in_flight, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for request in 1..=12 {
        let (bulkhead, in_flight, most) = (bulkhead.clone(), in_flight.clone(), most.clone());
        tasks.spawn(async move {
            // After half a second, render the page without recommendations.
            match bulkhead.acquire("recommendations", Duration::from_millis(500)).await {
                Some(_permit) => {
                    recommendations(&in_flight, &most).await;
                    println!("request {request:2}: with recommendations");
                }
                None => println!("request {request:2}: without"),
            }
        });
    }
    tasks.join_all().await;
    println!("at most {} calls at a time", most.load(Ordering::Relaxed));
    Ok(())
}
