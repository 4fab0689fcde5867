//! Permits of the fleet, and those that this node grants while the store is unavailable.
//!
//! What this node grants by itself is in flight as much as what the store grants. So the store learns of it
//! when it is available again, and until then this node asks the store for that many fewer.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::FailureMode;
use ratekeeper_stores::{PermitName, PermitReply, PermitStore, StoreError};
use tokio::sync::Semaphore;

use super::super::hold_id::HoldId;
use super::super::hold_table::TooManyHeld;
use super::super::permit_error::PermitError;
use super::Fallback;
use super::node_permits::{NodePermit, PermitsOf};
use super::permit_keeper::SharedPermit;
use crate::engine::applied::{Degraded, DegradedReason};
use crate::random::unguessable_id;

/// How long a permit is held unless it is renewed. The permits of a process that died expire after it.
pub(crate) const TTL: Duration = Duration::from_secs(10);
/// How often the release of a permit is retried, and the first back-off. Each further one is twice as long:
/// 25 seconds in all.
const RELEASE_TRIES: u32 = 8;
const RELEASE_AFTER: Duration = Duration::from_millis(100);
/// How many of these retries run at a time. Beyond that, such permits stay held until they expire.
static RELEASING: Semaphore = Semaphore::const_new(1_000);

/// A limit on how many requests are in flight per key, in the whole fleet.
#[derive(Clone, Debug)]
pub(crate) struct FleetLimit {
    pub(crate) name: Arc<str>,
    pub(crate) max: u64,
    pub(crate) ttl: Duration,
    pub(crate) on_failure: FailureMode,
}

/// A permit that a caller holds by an id which the store does not know.
pub(super) enum LocalHold {
    /// Released when it is dropped.
    Granted(#[expect(dead_code, reason = "held for what its drop does")] SharedPermit),
    /// In the store, which then failed to keep where it is.
    InStore(PermitsOf),
}

/// Why there is no permit.
///
/// ```
/// use ratekeeper::SharedConcurrencyLimit;
/// use ratekeeper::shared::AcquireError;
///
/// # async fn f(exports: SharedConcurrencyLimit) {
/// match exports.acquire("tenant-7").await {
///     Ok(_permit) => println!("exporting"),
///     Err(AcquireError::NoPermits { max, .. }) => println!("{max} exports are running"),
///     Err(error) => println!("{error}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// All permits are held.
    #[error("all {max} permits are held")]
    NoPermits {
        /// How many there are.
        max: u64,
        /// When the next one expires unless it is renewed.
        free_in: Duration,
    },
    /// The store is unavailable, and this node holds its share of the permits
    /// ([`FailureMode::Local`]).
    #[error("this node's share of {share} permits is held, and the store is unavailable: {error}")]
    ShareHeld {
        /// How many permits the share has.
        share: u64,
        /// Why the store did not decide.
        #[source]
        error: StoreError,
    },
    /// The store is unavailable ([`FailureMode::Closed`]).
    #[error(transparent)]
    Store(StoreError),
    /// Too many permits are held by their ids in this process.
    #[error(transparent)]
    TooManyHeld(#[from] TooManyHeld),
}

impl<S: PermitStore + Send + Sync + 'static> Fallback<S> {
    /// Returns a permit of the store or, if that does not decide in time, by the failure mode.
    pub(crate) async fn acquire_permit(
        self: &Arc<Self>,
        limit: &FleetLimit,
        key: &[u8],
    ) -> Result<SharedPermit, AcquireError> {
        let (of, id) = (limit.of(key), unguessable_id());
        match self.ask(limit, &of, id, limit.ttl).await {
            Ok(reply) if !reply.is_held => Err(limit.no_permits(&reply)),
            Ok(_) => Ok(self.keep(limit, id, self.permits.add(of), None)),
            Err(reason) => self.grant_here(limit, of, id, reason),
        }
    }

    /// Returns the id of a permit that is held for this long or until it is released.
    pub(crate) async fn hold_permit(
        self: &Arc<Self>,
        limit: &FleetLimit,
        key: &[u8],
        valid: Duration,
    ) -> Result<HoldId, AcquireError> {
        let (of, id) = (limit.of(key), HoldId::random());
        match self.ask(limit, &of, id.number(), valid.max(Duration::from_millis(1))).await {
            Ok(reply) if !reply.is_held => Err(limit.no_permits(&reply)),
            Ok(_) => self.put_location(of, id, valid).await,
            Err(reason) => {
                let permit = self.grant_here(limit, of, id.number(), reason)?;
                self.hold_here(id, LocalHold::Granted(permit), valid)
            }
        }
    }

    /// Keeps in the store where a permit is, so that it can be released by its id alone.
    async fn put_location(
        self: &Arc<Self>,
        of: PermitsOf,
        id: HoldId,
        valid: Duration,
    ) -> Result<HoldId, AcquireError> {
        if self.store.put_permit_location(&of.name(id.number()), valid).await.is_ok() {
            return Ok(id);
        }
        let held = self.hold_here(id, LocalHold::InStore(of.clone()), valid);
        if held.is_err() {
            // The caller could never release it.
            self.release_in_background(of, id.number());
        }
        held
    }

    fn hold_here(
        &self,
        id: HoldId,
        held: LocalHold,
        valid: Duration,
    ) -> Result<HoldId, AcquireError> {
        let id = id.degraded();
        self.held_permits.insert(id, held, valid, self.clock.now())?;
        Ok(id)
    }

    /// Releases a permit that is held by its id.
    pub(crate) async fn release_permit(&self, id: HoldId) -> Result<(), PermitError> {
        match self.held_permits.remove(id, self.clock.now()) {
            Some((_, LocalHold::Granted(_))) => Ok(()),
            Some((deadline, LocalHold::InStore(of))) => {
                // It is known until the store has released it: this call can fail, or be cancelled.
                self.held_permits.reinsert(id, LocalHold::InStore(of.clone()), deadline);
                let was_held = self.store.release_permit(&of.name(id.number())).await;
                if was_held.is_ok() {
                    self.held_permits.remove(id, self.clock.now());
                }
                released(was_held)
            }
            None if id.is_degraded() => Err(PermitError::HeldElsewhere),
            None => released(self.store.release_permit_of(id.number()).await),
        }
    }

    /// Asks the store for a permit, unless its breaker is open.
    async fn ask(
        self: &Arc<Self>,
        limit: &FleetLimit,
        of: &PermitsOf,
        id: u128,
        lives: Duration,
    ) -> Result<PermitReply, DegradedReason> {
        self.start();
        let shard = self.store.shard_of(&of.key);
        let Some(call) = self.breakers.try_call(std::iter::once(shard)) else {
            return Err(DegradedReason::BreakerOpen(self.status.last_error()));
        };
        let max = limit.max.saturating_sub(self.permits.unreported(of));
        let began = self.clock.now();
        let reply = self.store.acquire_permit(&of.name(id), max, lives).await;
        self.store_time.record(self.clock.now().since(began), 1);
        match reply {
            Ok(reply) => {
                call.succeeded();
                self.counters.count_store_decision();
                self.note_available();
                Ok(reply)
            }
            Err(error) => {
                let error = Arc::new(error);
                self.counters.count_error(&error);
                if call.failed(shard) {
                    self.note_unavailable(&error);
                }
                Err(DegradedReason::Failed(error))
            }
        }
    }

    /// Decides without the store.
    fn grant_here(
        self: &Arc<Self>,
        limit: &FleetLimit,
        of: PermitsOf,
        id: u128,
        reason: DegradedReason,
    ) -> Result<SharedPermit, AcquireError> {
        let (nodes, mode) = (self.membership.nodes(), limit.on_failure);
        self.counters.count_degraded(mode == FailureMode::Closed, mode == FailureMode::Local);
        let granted = match mode {
            FailureMode::Local => self.permits.add_within(limit.share(nodes), of.clone()),
            FailureMode::Open => self.permits.add_within(u64::MAX, of.clone()),
            FailureMode::Closed => None,
        };
        if let Some(permit) = granted {
            return Ok(self.keep(limit, id, permit, Some(Degraded::new(reason, nodes))));
        }
        let error = reason.error().clone();
        if let DegradedReason::Failed(_) = reason {
            // The store may have granted it all the same.
            self.release_in_background(of, id);
        }
        Err(match mode {
            FailureMode::Local => AcquireError::ShareHeld { share: limit.share(nodes), error },
            FailureMode::Open | FailureMode::Closed => AcquireError::Store(error),
        })
    }

    fn keep(
        self: &Arc<Self>,
        limit: &FleetLimit,
        id: u128,
        permit: NodePermit,
        degraded: Option<Degraded>,
    ) -> SharedPermit {
        SharedPermit::keep(self, limit.max, limit.ttl, id, permit, degraded)
    }

    fn release_in_background(self: &Arc<Self>, of: PermitsOf, id: u128) {
        let this = Arc::clone(self);
        tokio::spawn(async move { this.release_in_store(&of, id).await });
    }

    /// Releases a permit in the store, and tries again for a while if that fails. Then it expires.
    pub(super) async fn release_in_store(&self, of: &PermitsOf, id: u128) {
        if self.try_release(of, id).await {
            return;
        }
        let Ok(_slot) = RELEASING.try_acquire() else { return };
        for attempt in 0..RELEASE_TRIES {
            tokio::time::sleep(RELEASE_AFTER * 2_u32.pow(attempt)).await;
            if self.try_release(of, id).await {
                return;
            }
        }
    }

    async fn try_release(&self, of: &PermitsOf, id: u128) -> bool {
        self.is_called(&of.key) && self.store.release_permit(&of.name(id)).await.is_ok()
    }
}

impl FleetLimit {
    fn of(&self, key: &[u8]) -> PermitsOf {
        PermitsOf { limit: self.name.clone(), key: key.into() }
    }

    /// The permits that one of `nodes` grants by itself: at least one, unless there are none at all.
    fn share(&self, nodes: u32) -> u64 {
        (self.max / u64::from(nodes.max(1))).max(self.max.min(1))
    }

    fn no_permits(&self, reply: &PermitReply) -> AcquireError {
        AcquireError::NoPermits { max: self.max, free_in: reply.free_in }
    }
}

impl PermitsOf {
    pub(super) fn name(&self, id: u128) -> PermitName<'_> {
        PermitName { name: &self.limit, key: &self.key, id }
    }
}

fn released(was_held: Result<bool, StoreError>) -> Result<(), PermitError> {
    match was_held {
        Ok(true) => Ok(()),
        Ok(false) => Err(PermitError::NotHeld),
        Err(error) => Err(PermitError::Store(error)),
    }
}

#[cfg(test)]
mod tests {
    use ratekeeper_stores::RedisConfig;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_release_that_is_cancelled_can_be_repeated() {
        let redis = ratekeeper_testkit::RedisServer::start();
        let config = RedisConfig::new(&redis.url()).with_deadline(Duration::from_secs(5));
        let node = Fallback::new(config.open().unwrap());
        let (name, on_failure) = ("exports".into(), FailureMode::Local);
        let limit = FleetLimit { name, max: 1, ttl: TTL, on_failure };
        let held = node.hold_permit(&limit, b"acme", MINUTE).await.unwrap();
        // As if the store had failed to keep where it is.
        let id = node.hold_here(held, LocalHold::InStore(limit.of(b"acme")), MINUTE).unwrap();
        {
            let mut release = std::pin::pin!(node.release_permit(id));
            let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
            assert!(release.as_mut().poll(context).is_pending());
        }
        assert!(matches!(node.release_permit(id).await, Ok(()) | Err(PermitError::NotHeld)));
        assert!(node.hold_permit(&limit, b"acme", MINUTE).await.is_ok());
        assert_eq!(node.release_permit(id).await, Err(PermitError::HeldElsewhere), "only once");
    }

    #[test]
    fn a_share_is_the_permits_over_the_nodes_and_at_least_one() {
        let share = |max, nodes| {
            let (name, on_failure) = ("jobs".into(), FailureMode::Local);
            FleetLimit { name, max, ttl: TTL, on_failure }.share(nodes)
        };
        assert_eq!([share(10, 0), share(10, 1), share(10, 3), share(10, 30)], [10, 10, 3, 1]);
        assert_eq!(share(0, 3), 0);
    }
}
