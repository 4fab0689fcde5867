//! Where a gate's counts are kept: in this process, or in a store that is shared.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Decision, FailureMode, Limit, Micros};
use ratekeeper_policy::{Amount, AppliedLimit, StoreSettings};
use ratekeeper_stores::{Charge, ChargesError, MemoryStore, Op, StoreError, Verdict};
use smallvec::SmallVec;

use crate::histogram::Durations;

use super::Decided;
use super::admission::Receipt;
use super::live::Live;
#[cfg(feature = "redis")]
use super::{HeldPermit, InFlight};

#[cfg(feature = "redis")]
use {
    crate::shared::{
        AcquireError, BreakerState, Degraded, Fallback, FallbackStats, PermitId, SharedConcurrency,
        StoreState,
    },
    ratekeeper_stores::{LeaseStats, LeasedStore, RedisConfig, RedisStore, SharedStore},
};

pub(crate) enum Backend {
    Memory(Arc<MemoryStore>),
    #[cfg(feature = "redis")]
    Redis(Arc<Fallback<RedisStore>>, RedisStore),
    #[cfg(feature = "redis")]
    Leased(Arc<Fallback<LeasedStore<RedisStore>>>, RedisStore),
}

/// What a store says of several limits at once, as far as it matters here.
pub(crate) struct Checked {
    /// The decision of the limit that speaks for all.
    pub(crate) decision: Decision,
    /// Which of them that is.
    pub(crate) decided_by: usize,
    /// What each of them says.
    pub(crate) decisions: SmallVec<[Decision; 4]>,
    pub(crate) delay: Duration,
    pub(crate) receipt: Receipt,
}

impl Checked {
    fn new(verdict: &Verdict, origin: Origin) -> Self {
        Self {
            decision: **verdict,
            decided_by: verdict.binding(),
            decisions: verdict.decisions().iter().copied().collect(),
            delay: verdict.delay(),
            receipt: Receipt { at: verdict.at(), origin },
        }
    }
}

/// Who gave a verdict. Corrections go to the same.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    Store,
    #[cfg(feature = "redis")]
    Instead(Degraded),
}

impl Origin {
    pub(crate) fn is_degraded(&self) -> bool {
        !matches!(self, Self::Store)
    }
}

/// A permit that is asked for: of this name, for this key, one of so many.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) name: &'a Arc<str>,
    pub(crate) key: &'a [u8],
    pub(crate) max: u64,
}

impl Asked<'_> {
    fn permit_here(&self, live: &Live, max: u64) -> Option<Permit> {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        live.permits(self.name).try_acquire_of(max, self.key).map(Permit::Here)
    }
}

/// The right to be in flight.
#[derive(Debug)]
pub(crate) enum Permit {
    Here(#[expect(dead_code, reason = "held for what its drop does")] crate::concurrency::Permit),
    #[cfg(feature = "redis")]
    Fleet(#[expect(dead_code, reason = "held for what its drop does")] crate::shared::SharedPermit),
}

impl Backend {
    #[cfg(feature = "redis")]
    pub(crate) fn open(settings: &StoreSettings) -> Result<Self, String> {
        let Some(url) = &settings.url else { return Ok(Self::memory_of(settings)) };
        let mut config = RedisConfig::new(url);
        if let Some(prefix) = &settings.prefix {
            config = config.with_prefix(prefix);
        }
        if let Some(deadline) = settings.deadline {
            config = config.with_deadline(deadline);
        }
        let store = config.open().map_err(|error| error.to_string())?;
        Ok(match settings.leased {
            true => Self::Leased(Fallback::new(LeasedStore::new(store.clone())), store),
            false => Self::Redis(Fallback::new(store.clone()), store),
        })
    }

    #[cfg(not(feature = "redis"))]
    pub(crate) fn open(settings: &StoreSettings) -> Result<Self, String> {
        match &settings.url {
            None => Ok(Self::memory_of(settings)),
            Some(_) => Err("this program was built without the feature \"redis\"".into()),
        }
    }

    fn memory_of(settings: &StoreSettings) -> Self {
        let store = settings.keys_max.map_or_else(MemoryStore::new, MemoryStore::with_capacity);
        Self::Memory(Arc::new(store))
    }

    /// The store, if it is in this process. It answers at once.
    pub(crate) fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(store) => Some(store),
            #[cfg(feature = "redis")]
            _ => None,
        }
    }

    /// Does `op` with all of them or none. There are no more than one step can take.
    pub(crate) async fn apply(&self, op: Op, of: &[&AppliedLimit], now: Micros) -> Checked {
        match self {
            Self::Memory(store) => apply_here(store, op, of, now),
            #[cfg(feature = "redis")]
            Self::Redis(fallback, _) => apply_shared(fallback, op, of).await,
            #[cfg(feature = "redis")]
            Self::Leased(fallback, _) => apply_shared(fallback, op, of).await,
        }
    }

    /// Does `op` with limits of the caller's own.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "memory does not fail"))]
    pub(crate) async fn apply_to(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        on_failure: FailureMode,
        now: Micros,
    ) -> Result<Decided, ChargesError> {
        match self {
            Self::Memory(store) => {
                let verdict = store.apply_now(op, charges, now)?;
                Ok(Decided { verdict, receipt: Receipt::of_store(now) })
            }
            #[cfg(feature = "redis")]
            Self::Redis(fallback, _) => apply_elsewhere(fallback, op, charges, on_failure).await,
            #[cfg(feature = "redis")]
            Self::Leased(fallback, _) => apply_elsewhere(fallback, op, charges, on_failure).await,
        }
    }

    /// Corrects a charge where it was made.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "there is one place"))]
    pub(crate) async fn correct_where_charged(
        &self,
        op: Op,
        charge: &Charge<'_>,
        receipt: &Receipt,
        now: Micros,
    ) -> Result<Decided, StoreError> {
        match self {
            Self::Memory(store) => {
                let verdict = store.apply_now(op, &[*charge], now)?;
                Ok(Decided { verdict, receipt: Receipt::of_store(now) })
            }
            #[cfg(feature = "redis")]
            Self::Redis(fallback, _) => correct_shared(fallback, op, charge, receipt).await,
            #[cfg(feature = "redis")]
            Self::Leased(fallback, _) => correct_shared(fallback, op, charge, receipt).await,
        }
    }

    /// How long the store took, if it is not in this process.
    pub(crate) fn store_time(&self) -> Option<Durations> {
        match self {
            Self::Memory(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(fallback, _) => Some(fallback.store_time.durations()),
            #[cfg(feature = "redis")]
            Self::Leased(fallback, _) => Some(fallback.store_time.durations()),
        }
    }

    /// Gives back what was charged ahead.
    #[cfg(feature = "redis")]
    pub(crate) async fn leave(&self, now: Micros) {
        if let Self::Leased(fallback, _) = self {
            fallback.store.return_all(now).await;
        }
    }

    pub(crate) async fn reset(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => {
                store.reset(charge);
                Ok(())
            }
            #[cfg(feature = "redis")]
            Self::Redis(fallback, _) => fallback.reset(charge).await,
            #[cfg(feature = "redis")]
            Self::Leased(fallback, _) => fallback.reset(charge).await,
        }
    }

    /// A permit, unless so many are in flight.
    pub(crate) async fn acquire(&self, live: &Live, of: &AppliedLimit) -> Option<Permit> {
        let Amount::Concurrency { name, max } = of.amount() else { return None };
        let asked = Asked { name, key: of.key.as_bytes(), max: *max };
        self.acquire_one(live, asked, of.rule.on_failure()).await
    }

    /// The same for a limit of the caller's own.
    pub(crate) async fn acquire_one(
        &self,
        live: &Live,
        asked: Asked<'_>,
        on_failure: FailureMode,
    ) -> Option<Permit> {
        let here = |max: u64| asked.permit_here(live, max);
        #[cfg(feature = "redis")]
        if let Some(fleet) = self.fleet(asked) {
            if self.is_called(asked.key) {
                match fleet.acquire(asked.key).await {
                    Ok(permit) => return Some(Permit::Fleet(permit)),
                    Err(AcquireError::NoPermits { .. }) => return None,
                    Err(AcquireError::Store(_)) => {}
                }
            }
            return self.permit_instead(asked.max, on_failure, here);
        }
        let _ = on_failure;
        here(asked.max)
    }

    /// Corrects a charge where it was made. In a shared store that goes on in the background: a response
    /// does not wait for it.
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::needless_pass_by_value, reason = "sent away")
    )]
    pub(crate) fn correct(&self, op: Op, of: AppliedLimit, receipt: Receipt, now: Micros) {
        match self {
            Self::Memory(store) => {
                let _ = (store.apply_now(op, &[charge(&of)], now), receipt);
            }
            #[cfg(feature = "redis")]
            Self::Redis(fallback, _) => correct_later(fallback.clone(), op, of, receipt),
            #[cfg(feature = "redis")]
            Self::Leased(fallback, _) => correct_later(fallback.clone(), op, of, receipt),
        }
    }
}

#[cfg(feature = "redis")]
impl Backend {
    pub(crate) fn state(&self) -> Option<StoreState> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(fallback, _) => Some(fallback.state()),
            Self::Leased(fallback, _) => Some(fallback.state()),
        }
    }

    pub(crate) fn fallback_stats(&self) -> Option<FallbackStats> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(fallback, _) => Some(fallback.stats()),
            Self::Leased(fallback, _) => Some(fallback.stats()),
        }
    }

    pub(crate) fn breaker(&self) -> Option<BreakerState> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(fallback, _) => Some(fallback.breaker_state()),
            Self::Leased(fallback, _) => Some(fallback.breaker_state()),
        }
    }

    pub(crate) fn lease_stats(&self, now: Micros) -> Option<LeaseStats> {
        match self {
            Self::Memory(_) | Self::Redis(..) => None,
            Self::Leased(fallback, _) => Some(fallback.store.stats(now)),
        }
    }

    pub(crate) fn listen(&self, listener: Box<dyn Fn(&StoreState) + Send + Sync>) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(fallback, _) => fallback.listen(listener),
            Self::Leased(fallback, _) => fallback.listen(listener),
        }
    }

    /// Begins to watch the store before the first request comes.
    pub(crate) fn start(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(fallback, _) => fallback.start(),
            Self::Leased(fallback, _) => fallback.start(),
        }
    }

    fn is_called(&self, key: &[u8]) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Redis(fallback, _) => fallback.is_called(key),
            Self::Leased(fallback, _) => fallback.is_called(key),
        }
    }

    /// The permits of the whole fleet, if there is a shared store.
    fn fleet(&self, asked: Asked<'_>) -> Option<SharedConcurrency> {
        let (Self::Redis(_, store) | Self::Leased(_, store)) = self else { return None };
        self.start();
        Some(SharedConcurrency::new(asked.name, asked.max, store.clone()))
    }

    /// A permit that is held for this long in a shared store; in this process if there is none.
    pub(crate) async fn hold_one(
        &self,
        live: &Live,
        asked: Asked<'_>,
        valid: Duration,
        on_failure: FailureMode,
    ) -> Option<HeldPermit> {
        let here = |max: u64| asked.permit_here(live, max);
        let in_process = |permit: Permit| HeldPermit::InProcess(InFlight::new(permit));
        let Some(fleet) = self.fleet(asked) else { return here(asked.max).map(in_process) };
        if self.is_called(asked.key) {
            match fleet.hold(asked.key, valid).await {
                Ok(id) => return Some(HeldPermit::InStore(id)),
                Err(AcquireError::NoPermits { .. }) => return None,
                Err(AcquireError::Store(_)) => {}
            }
        }
        self.permit_instead(asked.max, on_failure, here).map(in_process)
    }

    /// Releases a permit in a shared store, and returns whether it was held.
    pub(crate) async fn release_one(
        &self,
        asked: Asked<'_>,
        id: PermitId,
    ) -> Result<bool, StoreError> {
        match self.fleet(asked) {
            Some(fleet) => fleet.release(asked.key, id).await,
            None => Ok(false),
        }
    }

    fn permit_instead(
        &self,
        max: u64,
        on_failure: FailureMode,
        here: impl Fn(u64) -> Option<Permit>,
    ) -> Option<Permit> {
        let nodes = self.fallback_stats().map_or(1, |stats| u64::from(stats.nodes.max(1)));
        match on_failure {
            FailureMode::Local => here((max / nodes).max(1)),
            FailureMode::Open => here(u64::MAX),
            FailureMode::Closed => None,
        }
    }
}

#[cfg(feature = "redis")]
async fn apply_elsewhere<S: SharedStore + Send + Sync + 'static>(
    fallback: &Arc<Fallback<S>>,
    op: Op,
    charges: &[Charge<'_>],
    on_failure: FailureMode,
) -> Result<Decided, ChargesError> {
    let charges: SmallVec<[_; 4]> = charges.iter().map(|one| (*one, on_failure)).collect();
    Ok(decided(&fallback.apply(op, &charges).await?))
}

#[cfg(feature = "redis")]
fn decided(answer: &crate::shared::Answer) -> Decided {
    let verdict = answer.verdict().clone();
    let origin = answer.degraded().cloned().map_or(Origin::Store, Origin::Instead);
    let receipt = Receipt { at: verdict.at(), origin };
    Decided { verdict, receipt }
}

fn apply_here(store: &MemoryStore, op: Op, of: &[&AppliedLimit], now: Micros) -> Checked {
    if let ([one], Op::Check) = (of, op) {
        let decision = store.check(&charge(one), now);
        let receipt = Receipt { at: now, origin: Origin::Store };
        let (decisions, delay) = (SmallVec::from_slice(&[decision]), decision.delay());
        return Checked { decision, decided_by: 0, decisions, delay, receipt };
    }
    let charges: SmallVec<[_; 4]> = of.iter().map(|one| charge(one)).collect();
    let verdict = store.apply_now(op, &charges, now).expect(FITS);
    Checked::new(&verdict, Origin::Store)
}

#[cfg(feature = "redis")]
async fn apply_shared<S: SharedStore + Send + Sync + 'static>(
    fallback: &Arc<Fallback<S>>,
    op: Op,
    of: &[&AppliedLimit],
) -> Checked {
    let charges: Vec<_> = of.iter().map(|one| (charge(one), one.rule.on_failure())).collect();
    let answer = fallback.apply(op, &charges).await.expect(FITS);
    let origin = answer.degraded().cloned().map_or(Origin::Store, Origin::Instead);
    Checked::new(answer.verdict(), origin)
}

#[cfg(feature = "redis")]
async fn correct_shared<S: SharedStore + Send + Sync + 'static>(
    fallback: &Arc<Fallback<S>>,
    op: Op,
    charge: &Charge<'_>,
    receipt: &Receipt,
) -> Result<Decided, StoreError> {
    let degraded = match &receipt.origin {
        Origin::Store => None,
        Origin::Instead(degraded) => Some(degraded),
    };
    Ok(decided(&fallback.correct(op, *charge, receipt.at, degraded).await?))
}

#[cfg(feature = "redis")]
fn correct_later<S: SharedStore + Send + Sync + 'static>(
    fallback: Arc<Fallback<S>>,
    op: Op,
    of: AppliedLimit,
    receipt: Receipt,
) {
    tokio::spawn(async move {
        // What cannot be corrected stays charged.
        let _ = correct_shared(&fallback, op, &charge(&of), &receipt).await;
    });
}

const FITS: &str = "names of limits differ, and no more are asked at once than fit";

pub(crate) fn charge(of: &AppliedLimit) -> Charge<'_> {
    Charge::new(rate(of), of.key.as_bytes()).cost(of.cost)
}

pub(crate) fn rate(of: &AppliedLimit) -> &Limit {
    match of.amount() {
        Amount::Rate(limit) => limit,
        Amount::Concurrency { .. } => unreachable!("permits are not charged"),
    }
}
