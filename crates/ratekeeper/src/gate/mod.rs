//! A policy in force: requests in, admissions out.

mod admission;
mod admit;
mod backend;
mod live;
mod meter;
mod near;
mod seen;
mod sources;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use ratekeeper_core::{Decision, FailureMode, Micros};
use ratekeeper_policy::{Policy, PolicyErrors, RequestAttributes, Resolution, Sources};
use ratekeeper_stores::{Charge, ChargesError, MemoryStore, Op, StoreError, Verdict};

use crate::clock::{Clock, SystemClock};
use crate::files::{FileStamps, POLICY_BYTES_MAX, Reloader, read_text};
use crate::histogram::{Durations, Sampled};

pub use admission::{Admission, Admitted, Receipt, Refusal, Refused, Speaker};
#[cfg(feature = "tower")]
pub(crate) use admit::Charges;
pub use live::Live;
pub use meter::{LimitStats, Loaded};
pub use near::{NearLimit, NoRatio};
pub use seen::{Outcome, Seen};
pub use sources::FileSources;

use backend::Backend;
use meter::Meters;

/// How often a policy that is watched is checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A policy over a store: decides about requests, and can be given another policy at any time
/// without losing a count.
///
/// ```
/// use ratekeeper::{Gate, Policy};
/// use ratekeeper::policy::RequestAttributes;
///
/// let gate = Gate::new(Policy::one_line("2/minute per ip")?)?;
/// let request = RequestAttributes { peer: Some([192, 0, 2, 1].into()), ..RequestAttributes::new("GET", "/") };
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// assert!(gate.decide(&request).await.is_admitted());
/// assert!(gate.decide(&request).await.is_admitted());
/// assert!(!gate.decide(&request).await.is_admitted());
/// # });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Gate {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    live: ArcSwap<Live>,
    backend: Backend,
    meters: Meters,
    /// How long the store took, if it is in this process.
    memory_time: Sampled,
    clock: Box<dyn Clock>,
    /// The file of [`Gate::open`], and how it and those that it refers to were when they were read.
    opened: OnceLock<(PathBuf, FileStamps)>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("policy", &self.live().policy()).finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate that keeps this policy, over the store that it names.
    pub fn new(policy: Policy) -> Result<Self, GateError> {
        Self::with_clock(policy, SystemClock)
    }

    /// The same by another clock. Over Redis, the server's clock decides in any case.
    pub fn with_clock(policy: Policy, clock: impl Clock + 'static) -> Result<Self, GateError> {
        let backend = Backend::open(policy.store()).map_err(GateError::Store)?;
        let meters = Meters::default();
        let live = ArcSwap::from_pointee(Live::new(policy, &meters, None));
        meters.loaded(clock.now());
        let (memory_time, clock, opened) = (Sampled::default(), Box::new(clock), OnceLock::new());
        let inner = Inner { live, backend, meters, memory_time, clock, opened };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A gate that keeps the policy in this file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GateError> {
        let path = path.as_ref();
        let (policy, stamps) = read_anew(path);
        let gate = Self::new(policy?)?;
        let _ = gate.inner.opened.set((path.to_path_buf(), stamps));
        Ok(gate)
    }

    /// Keeps another policy from now on. Counts are kept under the names of limits, so that usage
    /// carries over; requests that are on their way end under the old policy. Where the store is
    /// cannot change: then the old policy stays.
    pub fn replace(&self, policy: Policy) -> Result<(), GateError> {
        let replaced = self.try_replace(policy);
        match &replaced {
            Ok(()) => self.inner.meters.loaded(self.now()),
            Err(error) => self.inner.meters.failed(error.to_string(), self.now()),
        }
        replaced
    }

    fn try_replace(&self, policy: Policy) -> Result<(), GateError> {
        let old = self.live();
        if !is_same_place(old.policy().store(), policy.store()) {
            return Err(GateError::StoreChanged);
        }
        self.inner.live.store(Arc::new(Live::new(policy, &self.inner.meters, Some(&old))));
        Ok(())
    }

    /// Reads the file again. If it is no good, the old policy stays and [`Gate::loaded`] tells why.
    pub fn reload(&self, path: impl AsRef<Path>) -> Result<(), GateError> {
        let path = path.as_ref();
        self.offer(read_policy(path, &FileSources::beside(path)))
    }

    /// Looks at the file, and at those that it refers to, every second for as long as there is this gate,
    /// and reads it again when one has changed. Whatever comes of that goes to `tell`. Must be called
    /// in a tokio runtime. The file is read on a thread of its own, within five seconds; it
    /// is read at once, and not reported, unless it is the file of [`Gate::open`].
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use ratekeeper::Gate;
    ///
    /// let gate = Gate::open("policy.yaml")?;
    /// gate.watch("policy.yaml", |reloaded| match reloaded {
    ///     Ok(()) => println!("a new policy is in force"),
    ///     Err(error) => eprintln!("the old policy stays:\n{error}"),
    /// });
    /// # Ok(()) }
    /// ```
    pub fn watch(
        &self,
        path: impl AsRef<Path>,
        tell: impl Fn(Result<(), GateError>) + Send + 'static,
    ) {
        let (inner, path) = (Arc::downgrade(&self.inner), path.as_ref().to_path_buf());
        let name = path.display().to_string();
        let opened = self.inner.opened.get().filter(|(opened, _)| *opened == path);
        let (stamps, is_read) = (opened.map(|(_, stamps)| stamps.clone()), opened.is_some());
        let read = move || read_anew(&path);
        tokio::spawn(async move {
            let reloader = Reloader::new(stamps.unwrap_or_default());
            if !is_read {
                // Which files the policy refers to is known once it has been read.
                let _ = reloader.reload(read.clone()).await;
            }
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                let Some(inner) = inner.upgrade() else { return };
                let gate = Gate { inner };
                match reloader.reload_if_changed(read.clone()).await {
                    None => {}
                    Some(Ok(loaded)) => tell(gate.offer(loaded.value)),
                    // Reported already.
                    Some(Err(error)) if error.is_repeated => {}
                    Some(Err(error)) => {
                        tell(gate.offer(Err(PolicyErrors::unreadable(&name, error))));
                    }
                }
            }
        });
    }

    /// Keeps this policy from now on; if it is no good, the old one stays and [`Gate::loaded`] tells
    /// why.
    pub fn offer(&self, policy: Result<Policy, PolicyErrors>) -> Result<(), GateError> {
        policy.map_err(GateError::Policy).and_then(|policy| self.replace(policy)).inspect_err(
            |error| {
                if let GateError::Policy(_) = error {
                    self.inner.meters.failed(error.to_string(), self.now());
                }
            },
        )
    }

    /// The policy that is in force, and what belongs to it.
    pub fn live(&self) -> Arc<Live> {
        self.inner.live.load_full()
    }

    /// Decides about a request. The request is looked at before this returns; only the store is waited
    /// for.
    pub fn decide(
        &self,
        request: &RequestAttributes<'_>,
    ) -> impl Future<Output = Admission> + Send + use<> {
        let (gate, live) = (self.clone(), self.live());
        let resolved = self.resolve(&live, request);
        async move {
            match resolved {
                Ok(applied) => gate.admit(&live, applied, gate.now()).await,
                Err(admission) => *admission,
            }
        }
    }

    /// Does `op` with limits that are in no policy, over the same store and by the same clock: all of
    /// them or none. When the store does not answer, what the policy says for its store applies.
    ///
    /// ```
    /// use ratekeeper::{Charge, Gate, Limit, Op, Policy};
    ///
    /// let gate = Gate::new(Policy::one_line("100/minute per ip")?)?;
    /// let limit = Limit::token_bucket("5/s burst 10")?.named("mine");
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let decided = gate.apply(Op::Check, &[Charge::new(&limit, "ann")]).await.unwrap();
    /// assert_eq!(decided.verdict.remaining(), 9);
    /// # });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn apply(&self, op: Op, charges: &[Charge<'_>]) -> Result<Decided, ChargesError> {
        let (now, on_failure) = (self.now(), self.on_failure());
        let timed = self.inner.begin_timed();
        let decided = self.inner.backend.apply_to(op, charges, on_failure, now).await;
        self.inner.end_timed(timed);
        decided
    }

    /// Corrects a charge from [`Gate::apply`], where it was made: in the store or, if that did not answer,
    /// in this process.
    ///
    /// # Errors
    ///
    /// If the charge was made in the store, and that does not answer. The charge then stays as it is.
    pub async fn correct(
        &self,
        op: Op,
        charge: &Charge<'_>,
        receipt: &Receipt,
    ) -> Result<Decided, StoreError> {
        self.inner.backend.correct_where_charged(op, charge, receipt, self.now()).await
    }

    /// What limits that are in no policy do when the store does not answer.
    fn on_failure(&self) -> FailureMode {
        self.inner.live.load().policy().store().on_failure
    }

    /// Asks the store in this process ([`Gate::memory`]), and notes for one question in 64 how long
    /// that takes.
    #[inline]
    pub fn timed<T>(&self, ask: impl FnOnce() -> T) -> T {
        let timed = self.inner.begin_timed();
        let answer = ask();
        self.inner.end_timed(timed);
        answer
    }

    /// Makes the key of a limit that is in no policy as good as new.
    pub async fn reset(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.inner.backend.reset(charge).await
    }

    /// A permit to be in flight, one of so many of this name and key; `None` if all are held. Dropped, it
    /// is given back. Names that are in no policy may be as many as keys: none is remembered once nobody
    /// holds a permit of it.
    pub async fn acquire(&self, name: &str, key: &[u8], max: u64) -> Option<InFlight> {
        let key = key_of_callers(name, key);
        let asked = backend::Asked { name: &CALLERS, key: &key, max };
        let on_failure = self.on_failure();
        self.inner.backend.acquire_one(&self.live(), asked, on_failure).await.map(InFlight)
    }

    /// The same for a permit that is held for `valid` or until it is released. In a shared store it is bound to
    /// that time and not to this process: it stays held when the process is gone, and any process can
    /// release it ([`Gate::release`]). In memory, and while the store does not answer, the caller has it
    /// in hand and drops it in time.
    #[cfg(feature = "redis")]
    pub async fn hold(
        &self,
        name: &str,
        key: &[u8],
        max: u64,
        valid: Duration,
    ) -> Option<HeldPermit> {
        let key = key_of_callers(name, key);
        let asked = backend::Asked { name: &CALLERS, key: &key, max };
        self.inner.backend.hold_one(&self.live(), asked, valid, self.on_failure()).await
    }

    /// Releases a permit of this name and key that [`Gate::hold`] has put into a shared store, and returns
    /// whether it was still held.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    #[cfg(feature = "redis")]
    pub async fn release(
        &self,
        name: &str,
        key: &[u8],
        id: crate::shared::PermitId,
    ) -> Result<bool, StoreError> {
        let key = key_of_callers(name, key);
        let asked = backend::Asked { name: &CALLERS, key: &key, max: 0 };
        self.inner.backend.release_one(asked, id).await
    }

    /// The store, if it is in this process: it can be asked without waiting, at [`Gate::now`].
    pub fn memory(&self) -> Option<&MemoryStore> {
        self.inner.backend.memory()
    }

    /// What a rate has left for a key at present, and whether the store itself says so. Changes
    /// nothing. `None` for a limit of concurrency.
    pub async fn peek(&self, one: &ratekeeper_policy::AppliedLimit) -> Option<(Decision, bool)> {
        if matches!(one.amount(), ratekeeper_policy::Amount::Concurrency { .. }) {
            return None;
        }
        let checked = self.inner.backend.apply(Op::Peek, &[one], self.now()).await;
        Some((checked.decision, !checked.receipt.is_degraded()))
    }

    /// What a request is to be charged to; or the answer, if there is nothing to charge.
    pub(crate) fn resolve(
        &self,
        live: &Live,
        request: &RequestAttributes<'_>,
    ) -> Result<admit::Charges, Box<Admission>> {
        match live.policy().resolve(request) {
            Resolution::Charged(applied) => Ok(applied),
            Resolution::Exempt(_) => {
                self.inner.meters.count_exempt();
                Err(Box::new(Admission::Exempt))
            }
            Resolution::MissingIdentity { rule, missing } => {
                live.meter(rule).count_denied();
                let identity = missing.identity.to_string();
                let why = Refused::NoIdentity { identity, why: missing.why };
                Err(Box::new(Admission::Refused(Box::new(Refusal {
                    rule: rule.clone(),
                    why,
                    is_degraded: false,
                }))))
            }
        }
    }

    /// The present moment, by the gate's clock.
    pub fn now(&self) -> Micros {
        self.inner.clock.now()
    }

    /// When the policy was loaded, how often, and what was wrong with the last one that was not.
    pub fn loaded(&self) -> Loaded {
        self.inner.meters.status()
    }

    /// What each limit has done so far, by name.
    pub fn stats(&self) -> Vec<LimitStats> {
        self.inner.meters.stats()
    }

    /// From where on a limit counts as nearly used up, once and for all.
    pub fn near_limit_from(&self, ratio: NearLimit) {
        self.inner.meters.near_from(ratio);
    }

    /// Calls this with everything that a limit of the policy says about a request, from now on. It is
    /// called while the request waits.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use ratekeeper::{Gate, Policy};
    /// use ratekeeper::gate::Outcome;
    ///
    /// static DENIED: AtomicU64 = AtomicU64::new(0);
    /// let gate = Gate::new(Policy::one_line("2/minute per ip")?)?;
    /// gate.on_decision(|seen| {
    ///     if seen.outcome == Outcome::Denied {
    ///         DENIED.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_decision(&self, listener: impl Fn(&Seen<'_>) + Send + Sync + 'static) {
        self.inner.meters.listen(Box::new(listener));
    }

    /// How long the store took to answer. In memory only one call in 64 is timed, and counted as 64.
    pub fn store_time(&self) -> Durations {
        match self.inner.backend.store_time() {
            Some(durations) => durations,
            None => self.inner.memory_time.durations(),
        }
    }

    /// How many requests were exempt.
    pub fn exempt(&self) -> u64 {
        self.inner.meters.exempt()
    }

    /// Sizes and counters of the store in memory, if that is where counts are kept.
    pub fn memory_stats(&self) -> Option<ratekeeper_stores::MemoryStats> {
        self.inner.backend.memory().map(|store| store.stats(self.now()))
    }

    /// Is the store there? Always, in memory.
    #[cfg(feature = "redis")]
    pub fn store_state(&self) -> Option<crate::shared::StoreState> {
        self.inner.backend.state()
    }

    /// What was decided without the store so far, if there is a store that may fail.
    #[cfg(feature = "redis")]
    pub fn fallback_stats(&self) -> Option<crate::shared::FallbackStats> {
        self.inner.backend.fallback_stats()
    }

    /// Are calls sent to a shared store at present?
    #[cfg(feature = "redis")]
    pub fn breaker(&self) -> Option<crate::shared::BreakerState> {
        self.inner.backend.breaker()
    }

    /// What leases of hot keys have done so far, if the policy asks for them.
    #[cfg(feature = "redis")]
    pub fn lease_stats(&self) -> Option<ratekeeper_stores::LeaseStats> {
        self.inner.backend.lease_stats(self.now())
    }

    /// Begins to watch a shared store, which the first request does otherwise. Must be called in a
    /// tokio runtime, which has to last as long as the gate.
    #[cfg(feature = "redis")]
    pub fn start(&self) {
        self.inner.backend.start();
    }

    /// Gives back to a shared store what this node has charged ahead and not spent: for a node that is
    /// about to leave.
    #[cfg(feature = "redis")]
    pub async fn leave(&self) {
        self.inner.backend.leave(self.now()).await;
    }

    /// Calls this whenever a shared store goes down or comes back.
    #[cfg(feature = "redis")]
    pub fn on_store_change(
        &self,
        listener: impl Fn(&crate::shared::StoreState) + Send + Sync + 'static,
    ) {
        self.inner.backend.listen(Box::new(listener));
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl Inner {
    /// When a call of the store in memory begins, if it is one that is timed.
    #[inline]
    fn begin_timed(&self) -> Option<Micros> {
        let is_timed = self.backend.memory().is_some() && Sampled::is_due();
        is_timed.then(|| self.clock.now())
    }

    #[inline]
    fn end_timed(&self, began: Option<Micros>) {
        if let Some(began) = began {
            self.memory_time.record(self.clock.now().since(began));
        }
    }
}

/// A policy file as it is now, and the stamps of all files that it refers to.
fn read_anew(path: &Path) -> (Result<Policy, PolicyErrors>, FileStamps) {
    let sources = FileSources::beside(path);
    (read_policy(path, &sources), sources.stamps())
}

/// Deadlines, the choice when it is down, and the number of keys are not where it is; but they are
/// settled when a store is opened.
fn is_same_place(
    old: &ratekeeper_policy::StoreSettings,
    new: &ratekeeper_policy::StoreSettings,
) -> bool {
    let settled = |of: &ratekeeper_policy::StoreSettings| ratekeeper_policy::StoreSettings {
        on_failure: Default::default(),
        ..of.clone()
    };
    settled(old) == settled(new)
}

/// Reads a policy file: a regular file of at most [`POLICY_BYTES_MAX`] bytes.
pub fn read_policy(path: &Path, sources: &dyn Sources) -> Result<Policy, PolicyErrors> {
    let name = path.display().to_string();
    let text = read_text(path, POLICY_BYTES_MAX);
    let text = text.map_err(|error| PolicyErrors::unreadable(&name, error))?;
    Policy::parse(&name, &text, sources)
}

/// The right to be in flight, from [`Gate::acquire`], until it is dropped.
#[derive(Debug)]
#[must_use = "dropped, it is given back"]
pub struct InFlight(#[expect(dead_code, reason = "held for what its drop does")] backend::Permit);

impl InFlight {
    #[cfg(feature = "redis")]
    pub(crate) fn new(permit: backend::Permit) -> Self {
        Self(permit)
    }
}

/// A permit from [`Gate::hold`].
#[cfg(feature = "redis")]
#[derive(Debug)]
#[must_use = "a permit in the store stays held until it is released or its time is over"]
pub enum HeldPermit {
    /// Held in this process until it is dropped.
    InProcess(InFlight),
    /// Held in a shared store.
    InStore(crate::shared::PermitId),
}

/// All permits that are in no policy share one name.
static CALLERS: std::sync::LazyLock<Arc<str>> = std::sync::LazyLock::new(|| "callers".into());

/// The name's length keeps any two pairs apart.
fn key_of_callers(name: &str, key: &[u8]) -> Vec<u8> {
    [&(name.len() as u64).to_be_bytes(), name.as_bytes(), key].concat()
}

/// What was decided about limits that are in no policy.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The decisions.
    pub verdict: Verdict,
    /// When and where it was charged.
    pub receipt: Receipt,
}

impl Decided {
    /// Was it decided without the store, which does not answer?
    pub fn is_degraded(&self) -> bool {
        self.receipt.is_degraded()
    }
}

/// Why a policy cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateError {
    /// The policy is at fault.
    Policy(PolicyErrors),
    /// The store's address is.
    Store(String),
    /// The store is another one, which takes a restart.
    StoreChanged,
}

impl std::fmt::Display for GateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Policy(errors) => errors.fmt(f),
            Self::Store(why) => write!(f, "store: {why}"),
            Self::StoreChanged => f.write_str(
                "the store's settings have changed, which takes a restart; the old policy stays",
            ),
        }
    }
}

impl std::error::Error for GateError {}

impl From<PolicyErrors> for GateError {
    fn from(errors: PolicyErrors) -> Self {
        Self::Policy(errors)
    }
}
