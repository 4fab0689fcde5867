//! A gRPC service behind a limit, and a client that exceeds it.
//!
//! ```sh
//! cargo run -p ratekeeper --example tonic_service --features tonic
//! ```

use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (_, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = Server::builder()
        .layer(ratekeeper::layer("1/s burst 3 per ip")?)
        .add_service(service)
        .serve_with_incoming(TcpIncoming::from(listener));
    let server = tokio::spawn(server);

    let channel = Endpoint::try_from(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for call in 1..=5 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(_) => println!("call {call}: served"),
            Err(status) => {
                let wait = status.metadata().get("retry-after").and_then(|v| v.to_str().ok());
                let (code, wait) = (status.code(), wait.unwrap_or("?"));
                println!("call {call}: {code:?}, retry after {wait} s");
            }
        }
    }
    server.abort();
    Ok(())
}
