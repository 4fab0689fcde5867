//! An axum app behind a policy file.
//!
//! ```sh
//! cargo run -p ratekeeper --example axum_policy --features axum
//! ```

use std::net::SocketAddr;
use std::path::Path;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use ratekeeper::RatekeeperLayer;

/// The logged-in user, taken from a header here; a real app would use its session store.
#[derive(Clone)]
struct Session {
    user: String,
}

async fn log_in(mut request: Request, next: Next) -> Response {
    let user = request.headers().get("x-session").and_then(|value| value.to_str().ok());
    if let Some(user) = user.map(str::to_string) {
        request.extensions_mut().insert(Session { user });
    }
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/axum_policy.yaml");
    let limits = RatekeeperLayer::open(&policy)?
        .identify("user", |request| Some(request.extensions.get::<Session>()?.user.clone()))?;

    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/checkout", post(|| async { "sold\n" }))
        .route("/healthz", get(|| async { "ok\n" }))
        .layer(limits) // runs after `log_in`: the layer added last runs first
        .layer(middleware::from_fn(log_in));

    let address = std::env::var("LISTEN").unwrap_or("127.0.0.1:3000".into());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}; try a dozen checkouts of one user:");
    println!(
        "  for i in $(seq 12); do curl -si -X POST -H 'x-session: ann' http://{address}/checkout | head -1; done"
    );
    println!("and see the remaining quota:");
    println!("  curl -si -H 'x-api-key: k-partner' http://{address}/ | grep -i ratelimit");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
