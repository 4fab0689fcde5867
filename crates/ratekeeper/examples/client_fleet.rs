//! Three processes that call the same server, and share one budget over Redis.
//!
//! ```sh
//! cargo run -p ratekeeper --example client_fleet --features client,redis -- redis://127.0.0.1:6379
//! ```

use std::env;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ratekeeper::client::{ClientExt, Deadline, Outbound, OutboundError};
use ratekeeper::{RedisConfig, SharedLimiter};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tower::ServiceExt;

const PROCESSES: usize = 3;
const PER_SECOND: u32 = 30;
const TIME: Duration = Duration::from_secs(3);

type Error = Box<dyn std::error::Error>;

/// One process of the fleet: sends as much as it may, and prints how much that was.
async fn worker(redis: &str, url: &str) -> Result<(), Error> {
    let outbound = Outbound::shared(&format!("{PER_SECOND}/s per host"), redis)?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let client = client.layer(outbound);
    let end = Deadline::after(TIME);
    for sent in 0.. {
        let request = http::Request::get(url).extension(end).body(Empty::new())?;
        match client.clone().oneshot(request).await {
            Ok(_) => {}
            // The next one would be sent after the end.
            Err(OutboundError::WaitTooLong(_)) => {
                println!("{sent}");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Starts a server that notes when requests come, and returns its URL.
async fn serve(received: Arc<Mutex<Vec<Instant>>>) -> Result<String, Error> {
    let count = move || async move { received.lock().expect("not poisoned").push(Instant::now()) };
    let app = Router::new().route("/", get(count));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}

/// Fails if there is no store. Without one, each process would use a share of the budget instead.
async fn check_store(redis: &str) -> Result<(), Error> {
    // The first call connects, which may take longer than a decision.
    let store = RedisConfig::new(redis).with_deadline(Duration::from_secs(2)).open()?;
    let applied = SharedLimiter::new("1/s", store)?.check("client_fleet").await;
    match applied.degraded() {
        None => Ok(()),
        Some(degraded) => Err(format!(
            "there is no Redis at {redis}: {}; start one with `redis-server --port 6379` or \
             `docker run -p 6379:6379 redis`, or pass the URL of another",
            degraded.reason.error()
        )
        .into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [name, redis, url] = arguments.as_slice()
        && name == "worker"
    {
        return worker(redis, url).await;
    }
    let redis = arguments.into_iter().next().or_else(|| env::var("REDIS_URL").ok());
    let redis = redis.unwrap_or("redis://127.0.0.1:6379".into());
    if let Err(error) = check_store(&redis).await {
        eprintln!("{error}");
        std::process::exit(1);
    }

    let received = Arc::new(Mutex::new(Vec::new()));
    let url = serve(Arc::clone(&received)).await?;
    println!("{PROCESSES} processes share {PER_SECOND} requests a second, for {TIME:?}");
    let start = |_| {
        let mut process = Command::new(env::current_exe()?);
        process.args(["worker", &redis, &url]).stdout(Stdio::piped()).spawn()
    };
    let processes = (0..PROCESSES).map(start).collect::<Result<Vec<_>, _>>()?;
    for (number, process) in (1..).zip(processes) {
        // This blocks, which is fine here: the server runs on other threads.
        let sent = String::from_utf8(process.wait_with_output()?.stdout)?;
        println!("  process {number} sent {}", sent.trim());
    }

    let received = received.lock().expect("not poisoned");
    let (Some(first), Some(last)) = (received.first(), received.last()) else {
        return Err("no process has sent anything".into());
    };
    // A bucket is full at first, and is then refilled.
    let took = last.duration_since(*first).as_secs_f64();
    let budget = f64::from(PER_SECOND) * (1.0 + took);
    println!("the server received {}", received.len());
    println!("the budget is {PER_SECOND} at once and {PER_SECOND}/s for {took:.2} s: {budget:.0}");
    Ok(())
}
