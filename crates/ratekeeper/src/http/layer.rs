//! The tower layer.

use std::sync::{Arc, Once};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, header};
use http_body::Body;
use ratekeeper_core::Micros;
use ratekeeper_policy::attributes::{HostError, request_host};
use ratekeeper_policy::{Headers, Policy, PolicyErrors};
use tower_layer::Layer;
use tower_service::Service;

use super::answer::{malformed, refuse};
use super::body::ResponseBody;
use super::future::ResponseFuture;
use super::peer::peer;
use crate::gate::{Admission, Gate, GateError, Live};

/// A layer that keeps one limit in front of a service: a rate, and what it is per.
///
/// ```
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, routing::get};
///
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(ratekeeper::layer("100/minute per ip")?);
/// # Ok(()) }
/// ```
///
/// In axum the address of a caller is known if the service is made by
/// `into_make_service_with_connect_info::<SocketAddr>()`. Where it is not known, all callers count as
/// one. For what else it can be per, see [`Policy::one_line`].
pub fn layer(line: &str) -> Result<RatekeeperLayer, PolicyErrors> {
    let gate = Gate::new(Policy::one_line(line)?);
    Ok(RatekeeperLayer::new(gate.expect("a policy of one line is kept in memory")))
}

type Custom = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

/// Keeps a policy in front of a service.
///
/// A request whose host is malformed or contradicted is refused with 400, whatever the policy says: see
/// [`request_host`].
///
/// ```no_run
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ratekeeper::{Gate, RatekeeperLayer};
///
/// #[derive(Clone)]
/// struct Session { user: String }
///
/// let gate = Gate::open("policy.yaml")?;
/// let layer = RatekeeperLayer::new(gate)
///     // What the file cannot know: `identify: { user: { custom: true } }`
///     .identify("user", |request| Some(request.extensions.get::<Session>()?.user.clone()));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RatekeeperLayer {
    shared: Arc<Shared>,
}

struct Shared {
    gate: Gate,
    custom: Vec<(String, Arc<Custom>)>,
    warned: Once,
}

impl RatekeeperLayer {
    /// Keeps the policy of this gate.
    pub fn new(gate: Gate) -> Self {
        Self { shared: Arc::new(Shared { gate, custom: Vec::new(), warned: Once::new() }) }
    }

    /// Keeps the policy in this file.
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<Self, GateError> {
        Ok(Self::new(Gate::open(path)?))
    }

    /// Tells an identity that the policy leaves to the program (`custom: true`): `None` if a request
    /// has none.
    #[must_use]
    pub fn identify<V: Into<Vec<u8>>>(
        self,
        name: &str,
        find: impl Fn(&Parts) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        let mut custom = self.shared.custom.clone();
        custom.push((name.to_string(), Arc::new(move |parts| find(parts).map(Into::into))));
        let (gate, warned) = (self.shared.gate.clone(), Once::new());
        Self { shared: Arc::new(Shared { gate, custom, warned }) }
    }

    /// The gate, to replace its policy or to see what it has done.
    pub fn gate(&self) -> &Gate {
        &self.shared.gate
    }
}

impl std::fmt::Debug for RatekeeperLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RatekeeperLayer").field("gate", &self.shared.gate).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RatekeeperLayer {
    type Service = Ratekeeper<S>;

    fn layer(&self, inner: S) -> Ratekeeper<S> {
        Ratekeeper { inner, shared: self.shared.clone() }
    }
}

/// A service behind a policy, from [`RatekeeperLayer`].
#[derive(Clone)]
pub struct Ratekeeper<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S: std::fmt::Debug> std::fmt::Debug for Ratekeeper<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ratekeeper").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, Q, R> Service<Request<Q>> for Ratekeeper<S>
where
    S: Service<Request<Q>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, Q, S::Future, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let is_grpc = is_grpc(&parts.headers);
        let gate = &self.shared.gate;
        let (live, now) = (gate.live(), gate.now());
        let resolved = match self.shared.resolve(&live, &parts, now) {
            Ok(resolved) => resolved,
            Err(error) => {
                return ResponseFuture::refused(malformed(error).map(ResponseBody::own));
            }
        };
        let admission = match resolved {
            Err(admission) => Ok(*admission),
            Ok(charges) => gate.admit_now(&live, charges, now),
        };
        let request = Request::from_parts(parts, body);
        match admission {
            Ok(Admission::Exempt) => ResponseFuture::calling(self.inner.call(request), live, None),
            Ok(Admission::Refused(refusal)) => {
                let refused = refuse(live.policy().response_settings(), &refusal, is_grpc);
                ResponseFuture::refused(refused.map(ResponseBody::own))
            }
            Ok(Admission::Admitted(admitted)) if admitted.delay.is_zero() => {
                ResponseFuture::calling(self.inner.call(request), live, Some(admitted))
            }
            Ok(admission) => {
                ResponseFuture::waiting(self.take_ready(), request, live, is_grpc, async {
                    admission
                })
            }
            Err(charges) => {
                let (gate, of) = (gate.clone(), live.clone());
                let decided = async move { gate.admit(&of, charges, now).await };
                ResponseFuture::waiting(self.take_ready(), request, live, is_grpc, decided)
            }
        }
    }
}

impl<S: Clone> Ratekeeper<S> {
    /// The service that was found ready; another one takes its place here.
    fn take_ready(&mut self) -> S {
        let other = self.inner.clone();
        std::mem::replace(&mut self.inner, other)
    }
}

impl Shared {
    /// What the policy says of a request, unless it is not clear which host it is for.
    fn resolve(
        &self,
        live: &Live,
        parts: &Parts,
        now: Micros,
    ) -> Result<Result<crate::gate::Charges, Box<Admission>>, HostError> {
        let custom = |name: &str| {
            let (_, find) = self.custom.iter().find(|(known, _)| known == name)?;
            find(parts)
        };
        let peer = peer(&parts.extensions);
        if peer.is_none() && live.policy().counts_client_ips() {
            self.warned.call_once(warn_of_no_address);
        }
        let host_lines = parts.headers.get_all(header::HOST).iter().map(|host| host.as_bytes());
        let authority = parts.uri.authority().map(|authority| authority.as_str());
        let request = ratekeeper_policy::RequestAttributes {
            method: parts.method.as_str(),
            host: request_host(authority, host_lines)?,
            path: parts.uri.path(),
            query: parts.uri.query(),
            headers: &InMap(&parts.headers),
            peer,
            custom: &custom,
            unix_secs: now.get() / 1_000_000,
        };
        Ok(self.gate.resolve(live, &request))
    }
}

#[cold]
fn warn_of_no_address() {
    tracing::warn!(
        "a policy counts by address, but requests come without one, so all callers count as one; \
         in axum, serve app.into_make_service_with_connect_info::<SocketAddr>() and use the feature \
         \"axum\" of ratekeeper; elsewhere, put ratekeeper::http::PeerAddr into the request's extensions"
    );
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Headers as the `http` crate keeps them.
pub(super) struct InMap<'a>(pub(super) &'a HeaderMap);

impl Headers for InMap<'_> {
    fn each<'h>(&'h self, name: &str, show: &mut dyn FnMut(&'h [u8])) {
        self.0.get_all(name).iter().for_each(|value| show(value.as_bytes()));
    }
}
