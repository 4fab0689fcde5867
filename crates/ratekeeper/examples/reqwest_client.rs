//! A reqwest client that stays within a server's limit: the same requests, first as they come,
//! then with one line more.
//!
//! ```sh
//! cargo run -p ratekeeper --example reqwest_client --features reqwest,axum
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use ratekeeper::client::Outbound;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

const REQUESTS: usize = 60;

/// An API that allows each client twenty requests a second.
async fn serve() -> Result<SocketAddr, Box<dyn std::error::Error>> {
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(ratekeeper::layer("20/s per ip")?)
        .into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// Sends all requests at once, as a program does that works through a list.
async fn send_all(client: &ClientWithMiddleware, url: &str) {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..REQUESTS {
        let request = client.get(url);
        tasks.spawn(async move { request.send().await?.error_for_status().map_err(Into::into) });
    }
    let results: Vec<reqwest_middleware::Result<_>> = tasks.join_all().await;
    let served = results.iter().filter(|result| result.is_ok()).count();
    let took = began.elapsed().as_secs_f64();
    println!("  served {served} of {REQUESTS} in {took:.1} s");
    if let Some(error) = results.into_iter().find_map(Result::err) {
        println!("  the others: {error}");
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = format!("http://{}/", serve().await?);

    println!("{REQUESTS} requests, without Ratekeeper:");
    let client = ClientBuilder::new(reqwest::Client::new()).build();
    send_all(&client, &url).await;

    // The server's limit is used up. It is unused again after a second.
    tokio::time::sleep(Duration::from_secs(1)).await;

    println!("{REQUESTS} requests, with Ratekeeper:");
    // Slightly less than the server allows, because requests do not arrive exactly as they were sent.
    let outbound = Outbound::new("18/s per host")?;
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(outbound.clone()) // the line that is added
        .build();
    send_all(&client, &url).await;

    let stats = outbound.stats();
    println!("  refused by the server {}, retried {}", stats.refused, stats.retries);
    for (reason, waits) in stats.waits.iter().filter(|(_, waits)| waits.count > 0) {
        println!("  waited {} times ({reason})", waits.count);
    }
    Ok(())
}
