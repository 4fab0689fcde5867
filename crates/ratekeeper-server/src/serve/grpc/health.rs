//! Health checks and reflection, for probes and tools such as `grpcurl`.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use tower_service::Service;

use super::rls::proto::DESCRIPTORS;
use crate::listener::{Drain, Stage, StageWatch};

/// The name of the health service.
pub(super) const HEALTH: &str = "grpc.health.v1.Health";

/// The name that probes of envoyproxy/ratelimit ask for.
const RATELIMIT: &str = "ratelimit";

type ResponseFuture = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type BoxedService = Box<dyn Fn(Request<Body>) -> ResponseFuture + Send + Sync>;

/// The services beside the rate limit service, by name.
pub(super) struct AuxiliaryServices(Vec<(&'static str, BoxedService)>);

impl AuxiliaryServices {
    /// Creates the services. The services of these names and the server as a whole are reported as serving
    /// while they are ready, until the drain starts. Must be called in the worker's runtime.
    pub(super) async fn new(
        names: &'static [&'static str],
        drain: &Drain,
        mut is_ready: watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let (health, health_service) = health_reporter();
        let is_serving = *is_ready.borrow_and_update();
        set_status(&health, names, is_serving).await;
        let drain = drain.clone();
        tokio::spawn(async move {
            let mut drained = pin!(drain.reached(Stage::LastResponses));
            loop {
                tokio::select! {
                    () = &mut drained => return set_status(&health, names, false).await,
                    Ok(()) = is_ready.changed() => {
                        let is_serving = *is_ready.borrow_and_update();
                        set_status(&health, names, is_serving).await;
                    }
                }
            }
        });
        let reflection = || {
            let builder = tonic_reflection::server::Builder::configure();
            builder.register_encoded_file_descriptor_set(DESCRIPTORS)
        };
        Ok(Self(vec![
            boxed(health_service),
            boxed(reflection().build_v1().map_err(io::Error::other)?),
            // Older tools know only this version.
            boxed(reflection().build_v1alpha().map_err(io::Error::other)?),
        ]))
    }

    pub(super) fn get(&self, name: &str) -> Option<&BoxedService> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, service)| service)
    }
}

async fn set_status(health: &HealthReporter, names: &[&str], is_serving: bool) {
    let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    // The empty name stands for the server as a whole.
    for name in names.iter().copied().chain([RATELIMIT, ""]) {
        health.set_service_status(name, status).await;
    }
}

/// Boxes a service. These are called rarely.
fn boxed<S>(service: S) -> (&'static str, BoxedService)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let call: BoxedService = Box::new(move |request| {
        let response = service.clone().call(request);
        Box::pin(async {
            let Ok(response) = response.await;
            response
        })
    });
    (S::NAME, call)
}

/// Ends the response stream when the server closes idle connections, so that a client that watches its
/// health does not delay the shutdown.
pub(super) fn end_at_drain(response: Response<Body>, drain: &Drain) -> Response<Body> {
    response.map(|body| Body::new(UntilDrained { body, stage: StageWatch::new(drain) }))
}

pin_project! {
    /// A response body that ends when idle connections are closed.
    struct UntilDrained {
        #[pin]
        body: Body,
        stage: StageWatch,
    }
}

impl http_body::Body for UntilDrained {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.project();
        match this.stage.poll_stage(cx) {
            Stage::CloseIdle => Poll::Ready(None),
            Stage::Serving | Stage::LastResponses => this.body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
