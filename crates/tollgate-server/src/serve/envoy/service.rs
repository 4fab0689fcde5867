//! The gRPC side: the service itself, health and reflection.

use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, async_trait};

use super::EnvoyDoor;
use super::proto::{
    DESCRIPTORS, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer,
};
use crate::serve::ending::Ending;

/// More than any proxy sends.
const MESSAGE_MAX: usize = 256 * 1024;

/// Requests of a connection at a time.
const STREAMS_MAX: u32 = 1024;

/// A proxy that is gone without a word is found out by this. TCP asks for us: pings of HTTP/2 would
/// cost every request a little.
const KEEPALIVE: Duration = Duration::from_secs(30);

#[async_trait]
impl RateLimitService for EnvoyDoor {
    /// What we cannot decide is an error: Envoy would let an unknown code pass, whatever it was told
    /// to do when nobody answers.
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let decided = self.decide_measured(request.get_ref()).await;
        decided.map(Response::new).map_err(|invalid| Status::invalid_argument(invalid.0))
    }
}

/// Answers on this listener until the end begins, and then what is under way.
pub(crate) async fn serve(
    listener: StdListener,
    door: Arc<EnvoyDoor>,
    ending: Ending,
) -> io::Result<()> {
    let _listening = ending.join();
    let listener = TcpListener::from_std(listener)?;
    let incoming = TcpIncoming::from(listener);
    let incoming = incoming.with_nodelay(Some(true)).with_keepalive(Some(KEEPALIVE));
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<RateLimitServiceServer<EnvoyDoor>>().await;
    let end = async move {
        let begins = ending.begins();
        if !ending.has_begun() {
            begins.await;
        }
        health.set_not_serving::<RateLimitServiceServer<EnvoyDoor>>().await;
    };
    let reflection = || {
        let of_ours = tonic_reflection::server::Builder::configure();
        of_ours.register_encoded_file_descriptor_set(DESCRIPTORS)
    };
    let service = RateLimitServiceServer::from_arc(door).max_decoding_message_size(MESSAGE_MAX);
    let served = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .add_service(service)
        .add_service(health_service)
        .add_service(reflection().build_v1().map_err(io::Error::other)?)
        // Older tools ask for it by its first name.
        .add_service(reflection().build_v1alpha().map_err(io::Error::other)?)
        .serve_with_incoming_shutdown(incoming, end);
    served.await.map_err(io::Error::other)
}
