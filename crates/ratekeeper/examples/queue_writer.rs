//! A leaky queue in front of a database writer: a burst is written evenly spaced, and
//! records that would wait for too long are rejected at once.
//!
//! ```sh
//! cargo run -p ratekeeper --example queue_writer --features tokio
//! ```

use std::time::Duration;

use ratekeeper::{Limit, Limiter};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A database that sustains fifty writes a second.
async fn write(record: u32, start: Instant) {
    tokio::time::sleep(Duration::from_millis(2)).await;
    println!("{:4} ms  wrote {record}", start.elapsed().as_millis());
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Fifty writes a second, and a queue of twenty.
    let writes = Limiter::new(Limit::leaky_bucket("50/s burst 20")?)?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for record in 1..=30 {
        let writes = writes.clone();
        tasks.spawn(async move {
            match writes.key("db").queue().await {
                Ok(_) => write(record, start).await,
                Err(denied) => {
                    let wait = denied.retry_after().unwrap_or_default();
                    println!("   full  record {record}: retry in {wait:?}");
                }
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}
