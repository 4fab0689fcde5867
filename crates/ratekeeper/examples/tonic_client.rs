//! A gRPC client that stays within a server's limit, and repeats calls that the server could not
//! serve for a moment.
//!
//! ```sh
//! cargo run -p ratekeeper --example tonic_client --features client,tonic
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ratekeeper::client::{ClientExt, Outbound, Repeatable, WaitReason};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic::service::InterceptorLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server, Uri};
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const CALLS: usize = 30;

/// Fails every tenth call, with a pushback of 50 ms.
fn unreliable(request: Request<()>) -> Result<Request<()>, Status> {
    static RECEIVED: AtomicUsize = AtomicUsize::new(0);
    if RECEIVED.fetch_add(1, Ordering::Relaxed) % 10 < 9 {
        return Ok(request);
    }
    let mut status = Status::unavailable("restarting");
    status.metadata_mut().insert("grpc-retry-pushback-ms", 50.into());
    Err(status)
}

/// A service that allows each client ten calls a second.
async fn serve() -> Result<Uri, Box<dyn std::error::Error>> {
    let (_, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}", listener.local_addr()?).parse()?;
    let server = Server::builder()
        .layer(ratekeeper::layer("10/s per ip")?)
        .layer(InterceptorLayer::new(unreliable))
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener));
    tokio::spawn(server);
    Ok(uri)
}

/// Makes all calls, and prints how they ended.
async fn call_all<R>(mut call: impl AsyncFnMut(Request<HealthCheckRequest>) -> Result<R, Status>) {
    let (began, mut served, mut failed) = (Instant::now(), 0, BTreeMap::new());
    for _ in 0..CALLS {
        let mut request = Request::new(HealthCheckRequest::default());
        // gRPC does not say which calls may be repeated, so the program does.
        request.extensions_mut().insert(Repeatable);
        match call(request).await {
            Ok(_) => served += 1,
            Err(status) => *failed.entry(format!("{:?}", status.code())).or_insert(0) += 1,
        }
    }
    println!("  served {served} of {CALLS} in {:.1} s", began.elapsed().as_secs_f64());
    failed.iter().for_each(|(code, calls)| println!("  failed {calls}: {code}"));
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let uri = serve().await?;
    let channel = Endpoint::from(uri.clone()).connect().await?;

    println!("{CALLS} calls, without Ratekeeper:");
    let mut client = HealthClient::new(channel.clone());
    call_all(async |request| client.check(request).await).await;

    // The server's limit is used up. It is unused again after a second.
    tokio::time::sleep(Duration::from_secs(1)).await;

    println!("{CALLS} calls, with Ratekeeper:");
    // Slightly less than the server allows, because calls do not arrive exactly as they were sent.
    let outbound = Outbound::new("9/s per host")?;
    let limited = channel.clone().layer(outbound.clone());
    // With its origin, a call has the host that the limit is counted per.
    let mut client = HealthClient::with_origin(limited, uri.clone());
    call_all(async |request| client.check(request).await).await;
    let stats = outbound.stats();
    let (waits, retries) = (stats.waits_for(WaitReason::RateLimit).count, stats.retries);
    println!("  waited {waits}, retried {retries}, refused by the server {}", stats.refused);

    println!("{CALLS} calls, with Ratekeeper and no time to wait:");
    let outbound = outbound.max_wait(Duration::ZERO);
    let mut client = HealthClient::with_origin(channel.layer(outbound), uri);
    call_all(async |request| client.check(request).await).await;
    if let Err(status) = client.check(HealthCheckRequest::default()).await {
        println!("  message: {}", status.message());
    }
    Ok(())
}
