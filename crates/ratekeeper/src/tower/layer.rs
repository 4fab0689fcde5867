//! The tower layer.

use std::sync::{Arc, Once};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, header};
use http_body::Body;
use ratekeeper_core::Micros;
use ratekeeper_policy::attributes::{HostError, request_host};
use ratekeeper_policy::{Headers, Policy, PolicyErrors, RequestAttributes};
use tower_layer::{Layer, Stack};
use tower_service::Service;

use super::body::ResponseBody;
use super::dependencies::DependencyLayer;
use super::future::{ResponseFuture, forward};
use super::peer::peer;
use super::request_json::{BodyFields, RequestJsonLayer};
use super::response::{bad_request, misconfigured, refuse, refuse_shed};
use crate::admission::Admission;
use crate::dependency::Dependency;
use crate::engine::MaybeReady;
use crate::policy_handle::{ActivePolicy, PolicyLoadError};
use crate::policy_limiter::PolicyLimiter;

/// Returns a layer that enforces one limit: a rate, and what it is counted per.
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
/// In axum, use the feature `axum` and serve `app.into_make_service_with_connect_info::<SocketAddr>()`, so that
/// the address of a client is known. Elsewhere, put a [`PeerAddr`](super::PeerAddr) into the request's
/// extensions. A request whose address is needed and unknown gets 500 and this explanation, because all
/// clients would otherwise count as one. For what else a limit can be per, see [`Policy::one_line`].
///
/// # Errors
///
/// If the line cannot be parsed.
pub fn layer(line: &str) -> Result<RatekeeperLayer, PolicyErrors> {
    let limiter = PolicyLimiter::new(Policy::one_line(line)?);
    Ok(RatekeeperLayer::new(limiter.expect("a policy of one line has its store in memory")))
}

type CustomIdentity = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

/// A tower layer that enforces a policy.
///
/// A request whose host is malformed or ambiguous is rejected with 400, whatever the policy says: see
/// [`request_host`].
///
/// ```no_run
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ratekeeper::{PolicyLimiter, RatekeeperLayer};
///
/// #[derive(Clone)]
/// struct Session { user: String }
///
/// let limiter = PolicyLimiter::open("policy.yaml")?;
/// let layer = RatekeeperLayer::new(limiter)
///     // What the file cannot know: `identify: { user: { custom: true } }`
///     .identify("user", |request| Some(request.extensions.get::<Session>()?.user.clone()))?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RatekeeperLayer {
    config: Arc<LayerConfig>,
}

pub(super) struct LayerConfig {
    limiter: PolicyLimiter,
    custom: Vec<(String, Arc<CustomIdentity>)>,
    logged: Once,
}

/// Why an identity cannot be supplied.
///
/// ```
/// use ratekeeper::{Policy, PolicyLimiter, RatekeeperLayer};
///
/// let policy = Policy::one_line("100/minute per custom user")?;
/// let layer = RatekeeperLayer::new(PolicyLimiter::new(policy)?);
/// let error = layer.identify("usr", |_| None::<String>).unwrap_err();
/// assert_eq!(error.to_string(), "the policy has no identity \"usr\"; its custom identities: user");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifyError {
    /// The policy has no identity of this name.
    #[error("the policy has no identity \"{name}\"; its custom identities: {}", list(.custom))]
    Unknown {
        /// The name.
        name: String,
        /// The custom identities that the policy has.
        custom: Vec<String>,
    },
    /// The policy takes this identity from the request.
    #[error(
        "the policy takes the identity \"{0}\" from the request; write `{0}: {{ custom: true }}` in the \
         policy to supply it here"
    )]
    NotCustom(String),
}

impl IdentifyError {
    /// Checks that the active policy has a custom identity of this name.
    pub(crate) fn check(limiter: &PolicyLimiter, name: &str) -> Result<(), Self> {
        let active = limiter.policy().active();
        let policy = active.policy();
        if policy.custom_identities().any(|known| known == name) {
            return Ok(());
        }
        let name = name.to_string();
        Err(match policy.identities().any(|known| known == name) {
            true => Self::NotCustom(name),
            false => {
                let custom = policy.custom_identities().map(ToString::to_string).collect();
                Self::Unknown { name, custom }
            }
        })
    }
}

/// The same text as `Display`, because it is what `main` prints of an error that it returns.
impl std::fmt::Debug for IdentifyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_string(),
        names => names.join(", "),
    }
}

impl RatekeeperLayer {
    /// Returns a layer that enforces the policy of this limiter.
    pub fn new(limiter: PolicyLimiter) -> Self {
        Self { config: Arc::new(LayerConfig { limiter, custom: Vec::new(), logged: Once::new() }) }
    }

    /// Returns a layer that enforces the policy in this file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or its policy is invalid.
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<Self, PolicyLoadError> {
        Ok(Self::new(PolicyLimiter::open(path)?))
    }

    /// Supplies an identity that the policy leaves to the program (`custom: true`). `find` returns `None` if
    /// a request has none. All custom identities of the policy have to be supplied; otherwise every request
    /// gets 500 and an explanation.
    ///
    /// # Errors
    ///
    /// If the policy has no such identity, or it is not custom.
    pub fn identify<V: Into<Vec<u8>>>(
        self,
        name: &str,
        find: impl Fn(&Parts) -> Option<V> + Send + Sync + 'static,
    ) -> Result<Self, IdentifyError> {
        IdentifyError::check(&self.config.limiter, name)?;
        let mut custom = self.config.custom.clone();
        custom.push((name.to_string(), Arc::new(move |parts| find(parts).map(Into::into))));
        let (limiter, logged) = (self.config.limiter.clone(), Once::new());
        Ok(Self { config: Arc::new(LayerConfig { limiter, custom, logged }) })
    }

    /// Returns the layer that reads the bodies of requests for this one, where the policy has `request_json`.
    /// It goes outside of this layer.
    pub fn request_json(&self) -> RequestJsonLayer {
        RequestJsonLayer::new(Arc::clone(&self.config))
    }

    /// Returns this layer together with the one that reads the bodies of requests, where the policy has
    /// `request_json`. Without it, a request whose limits depend on its body gets 500 and an explanation.
    ///
    /// ```no_run
    /// # fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::{Router, routing::post};
    /// use ratekeeper::RatekeeperLayer;
    ///
    /// let app: Router = Router::new()
    ///     .route("/v1/chat/completions", post(|| async { "…" }))
    ///     .layer(RatekeeperLayer::open("policy.yaml")?.with_request_json());
    /// # Ok(()) }
    /// ```
    pub fn with_request_json(self) -> Stack<RatekeeperLayer, RequestJsonLayer> {
        let request_json = self.request_json();
        Stack::new(self, request_json)
    }

    /// Returns the layer that protects the dependencies of the policy that have a `match`. It goes inside of this
    /// layer.
    pub fn dependencies(&self) -> DependencyLayer {
        DependencyLayer::new(Arc::clone(&self.config))
    }

    /// Returns the limiter, to replace its policy or to read its counters.
    pub fn limiter(&self) -> &PolicyLimiter {
        &self.config.limiter
    }
}

impl std::fmt::Debug for RatekeeperLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let limiter = &self.config.limiter;
        f.debug_struct("RatekeeperLayer").field("limiter", limiter).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RatekeeperLayer {
    type Service = Ratekeeper<S>;

    fn layer(&self, inner: S) -> Ratekeeper<S> {
        let config = Arc::clone(&self.config);
        let supplied: Vec<&str> = config.custom.iter().map(|(name, _)| name.as_str()).collect();
        let declared = config.limiter.policy().declare_custom_identities(&supplied);
        let setup_error = declared.err().map(|error| error.to_string().into());
        Ratekeeper { inner, config, setup_error }
    }
}

/// A service behind a policy, from [`RatekeeperLayer`].
///
/// ```
/// use tower::{Layer, service_fn};
///
/// let limits = ratekeeper::layer("100/minute per ip")?;
/// let service = limits.layer(service_fn(|_: http::Request<()>| async {
///     Ok::<_, std::convert::Infallible>(http::Response::new(()))
/// }));
/// let inner = service.into_inner();
/// # Ok::<(), ratekeeper::PolicyErrors>(())
/// ```
#[derive(Clone)]
pub struct Ratekeeper<S> {
    inner: S,
    config: Arc<LayerConfig>,
    /// Why no request can be decided.
    setup_error: Option<Arc<str>>,
}

impl<S> Ratekeeper<S> {
    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes this and returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
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
        let policy = self.config.active_policy(&parts);
        let deciding = match &self.setup_error {
            Some(error) => Err(UndecidedError::Setup(error.clone())),
            None => self.config.decide(policy.clone(), &parts),
        };
        let deciding = match deciding {
            Ok(deciding) => deciding,
            Err(error) => {
                let response = self.config.undecided_response(&error, is_grpc);
                return ResponseFuture::refused(response.map(ResponseBody::own));
            }
        };
        let request = Request::from_parts(parts, body);
        match deciding.try_now() {
            Ok(Admission::Exempt) => {
                ResponseFuture::calling(self.inner.call(request), policy, None)
            }
            Ok(Admission::Refused(refusal)) => {
                let refused = refuse(policy.policy().response_settings(), &refusal, is_grpc);
                ResponseFuture::refused(refused.map(ResponseBody::own))
            }
            Ok(Admission::Shed(refusal)) => {
                ResponseFuture::refused(refuse_shed(&refusal, is_grpc).map(ResponseBody::own))
            }
            Ok(Admission::Admitted(admitted)) if admitted.delay.is_zero() => {
                let response = forward(&mut self.inner, request, Some(&admitted));
                ResponseFuture::calling(response, policy, Some(admitted))
            }
            Ok(admission) => {
                let admission = std::future::ready(admission);
                ResponseFuture::waiting(self.take_ready(), request, policy, is_grpc, admission)
            }
            Err(deciding) => {
                ResponseFuture::waiting(self.take_ready(), request, policy, is_grpc, deciding)
            }
        }
    }
}

impl<S: Clone> Ratekeeper<S> {
    /// Takes the service that `poll_ready` found ready, and leaves a clone.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

impl LayerConfig {
    /// Returns the policy that an outer layer has put into the extensions of the request, so that all layers
    /// see the same; otherwise the active one.
    pub(super) fn active_policy(&self, parts: &Parts) -> Arc<ActivePolicy> {
        let known = parts.extensions.get::<Arc<ActivePolicy>>().cloned();
        known.unwrap_or_else(|| self.limiter.policy().active())
    }

    /// Returns whether the limits of a request depend on its body.
    pub(super) fn needs_request_json(&self, policy: &ActivePolicy, parts: &Parts) -> bool {
        let now = self.limiter.engine().now();
        let needs = |request: &RequestAttributes<'_>| policy.policy().needs_request_json(request);
        // A request with an invalid host is rejected.
        self.with_attributes(parts, now, needs).unwrap_or(false)
    }

    /// Returns the dependencies of a request.
    pub(super) fn dependencies_of(&self, parts: &Parts) -> Vec<Dependency> {
        let policy = self.active_policy(parts);
        if !policy.policy().dependencies().iter().any(|rule| rule.is_conditional()) {
            return Vec::new();
        }
        let now = self.limiter.engine().now();
        let found = self.with_attributes(parts, now, |request| {
            let rules = policy.policy().dependencies_of(request);
            let found = rules.iter().filter_map(|rule| policy.dependency(rule.name()).ok());
            found.cloned().collect()
        });
        // A request with an invalid host is rejected by the limits.
        found.unwrap_or_default()
    }

    /// Decides about a request, unless it is unknown which host it is for, from which client it comes, or what
    /// its body is.
    fn decide(
        &self,
        policy: Arc<ActivePolicy>,
        parts: &Parts,
    ) -> Result<MaybeReady<Admission>, UndecidedError> {
        let now = self.limiter.engine().now();
        self.with_attributes(parts, now, |request| {
            if request.peer.is_none() && policy.policy().needs_client_ip(request) {
                return Err(UndecidedError::UnknownPeer);
            }
            let is_read = parts.extensions.get::<BodyFields>().is_some();
            if !is_read && policy.policy().needs_request_json(request) {
                return Err(UndecidedError::UnreadBody);
            }
            Ok(self.limiter.decide_under(policy, request, now))
        })?
    }

    /// Calls `act` with the attributes of a request.
    fn with_attributes<T>(
        &self,
        parts: &Parts,
        now: Micros,
        act: impl FnOnce(&RequestAttributes<'_>) -> T,
    ) -> Result<T, HostError> {
        let custom = |name: &str| {
            let (_, find) = self.custom.iter().find(|(known, _)| known == name)?;
            find(parts)
        };
        let fields = parts.extensions.get::<BodyFields>().and_then(|BodyFields(it)| it.as_deref());
        let host_lines = parts.headers.get_all(header::HOST).iter().map(|host| host.as_bytes());
        let authority = parts.uri.authority().map(|authority| authority.as_str());
        Ok(act(&RequestAttributes {
            method: parts.method.as_str(),
            host: request_host(authority, host_lines)?,
            port: None,
            path: parts.uri.path(),
            query: parts.uri.query(),
            headers: &InMap(&parts.headers),
            json: fields,
            peer: peer(&parts.extensions),
            custom: &custom,
            unix_secs: now.get() / 1_000_000,
        }))
    }

    #[cold]
    fn undecided_response(&self, error: &UndecidedError, is_grpc: bool) -> Response<Bytes> {
        let UndecidedError::Host(error) = error else {
            self.logged.call_once(|| tracing::error!("{error}"));
            return misconfigured(&error.to_string(), is_grpc);
        };
        bad_request(*error)
    }
}

/// Why no limit can be applied to a request.
#[derive(Debug, thiserror::Error)]
enum UndecidedError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("{0}")]
    Setup(Arc<str>),
    #[error("{UNKNOWN_PEER}")]
    UnknownPeer,
    #[error(
        "a limit depends on the body of this request, which was not read: use RatekeeperLayer::with_request_json, \
         or put RatekeeperLayer::request_json outside of the layer"
    )]
    UnreadBody,
}

#[cfg(feature = "axum")]
const UNKNOWN_PEER: &str = "a limit counts per client address, but this request has none: serve \
    app.into_make_service_with_connect_info::<SocketAddr>(), or put ratekeeper::tower::PeerAddr into the \
    request's extensions, for example in a test";

#[cfg(not(feature = "axum"))]
const UNKNOWN_PEER: &str = "a limit counts per client address, but this request has none: with axum, use the \
    feature \"axum\" of ratekeeper and serve app.into_make_service_with_connect_info::<SocketAddr>(); with \
    tonic, use the feature \"tonic\"; elsewhere, put ratekeeper::tower::PeerAddr into the request's extensions";

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// The headers of an `http` request or response.
pub(crate) struct InMap<'a>(pub(crate) &'a HeaderMap);

impl Headers for InMap<'_> {
    fn each<'h>(&'h self, name: &str, show: &mut dyn FnMut(&'h [u8])) {
        self.0.get_all(name).iter().for_each(|value| show(value.as_bytes()));
    }
}
