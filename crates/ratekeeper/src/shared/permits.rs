//! Permits that a fleet shares: a limit on how many requests are in flight on all nodes together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratekeeper_core::Key;
use ratekeeper_stores::redis::PermitName;
use ratekeeper_stores::{RedisStore, StoreError};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::random::unguessable_id;

/// How long a permit is held unless it is renewed. The permits of a process that died expire after it.
const TTL: Duration = Duration::from_secs(10);
/// How often the release of a permit is retried that may have been granted although no reply came, and the
/// first back-off. Each further one is twice as long: 25 seconds in all.
const RELEASE_TRIES: u32 = 8;
const RELEASE_AFTER: Duration = Duration::from_millis(100);
/// How many of these retries run at a time. Beyond that, such permits stay held until they expire.
static RELEASING: Semaphore = Semaphore::const_new(1_000);

/// Limits how many requests are in flight per key, in the whole fleet.
///
/// A permit is renewed in the background while it is held, and released when it is dropped. If its process
/// dies, it expires after ten seconds ([`SharedConcurrencyLimit::with_ttl`]).
/// [`SharedConcurrencyLimit::hold`] returns permits that expire at a fixed time instead.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ratekeeper::{RedisConfig, SharedConcurrencyLimit};
///
/// let store = RedisConfig::new("redis://127.0.0.1:6379").open()?;
/// let exports = SharedConcurrencyLimit::new("exports", 5, store);
/// let permit = exports.acquire("tenant-7").await?;
/// // … at most five of tenant-7's exports run at a time, on all nodes together …
/// drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedConcurrencyLimit {
    name: Arc<str>,
    max: u64,
    ttl: Duration,
    store: RedisStore,
}

impl fmt::Debug for SharedConcurrencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, max, .. } = self;
        f.debug_struct("SharedConcurrencyLimit").field("name", name).field("max", max).finish()
    }
}

impl SharedConcurrencyLimit {
    /// Returns a limit of `max` per key. Limits of the same name share their permits.
    pub fn new(name: &str, max: u64, store: RedisStore) -> Self {
        Self { name: name.into(), max, ttl: TTL, store }
    }

    /// Sets how long a permit is held unless it is renewed; at least a tenth of a second.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl: ttl.max(Duration::from_millis(100)), ..self }
    }

    /// Returns a permit for this key.
    ///
    /// # Errors
    ///
    /// If all permits are held, or the store is unavailable.
    pub async fn acquire<K: Key + ?Sized>(&self, key: &K) -> Result<SharedPermit, AcquireError> {
        let id = unguessable_id();
        self.take(key.key_bytes(), id, self.ttl).await?;
        Ok(SharedPermit::new(self.clone(), key.key_bytes().into(), id))
    }

    /// Returns a permit that is held for this long, at least a millisecond, or until it is released, even if
    /// this process exits. Any process that knows its id can release it
    /// ([`SharedConcurrencyLimit::release`]).
    ///
    /// # Errors
    ///
    /// If all permits are held, or the store is unavailable. The store may have granted the permit all the
    /// same; it is then released in the background, and expires if that fails too.
    pub async fn hold<K: Key + ?Sized>(
        &self,
        key: &K,
        valid: Duration,
    ) -> Result<PermitId, AcquireError> {
        let (key, id) = (key.key_bytes(), unguessable_id());
        let taken = self.take(key, id, valid.max(Duration::from_millis(1))).await;
        if let Err(AcquireError::Store(_)) = taken {
            self.release_in_background(key, PermitId(id));
        }
        taken.map(|()| PermitId(id))
    }

    /// Releases a permit from [`SharedConcurrencyLimit::hold`], and returns whether it was still held.
    ///
    /// # Errors
    ///
    /// If the store is unavailable.
    pub async fn release<K: Key + ?Sized>(
        &self,
        key: &K,
        id: PermitId,
    ) -> Result<bool, StoreError> {
        let name = PermitName { name: &self.name, key: key.key_bytes(), id: id.0 };
        self.store.release_permit(&name).await
    }

    /// Keeps in the store where a permit is, so that it can be released by its id alone.
    #[cfg(feature = "policy")]
    pub(crate) async fn put_location(
        &self,
        key: &[u8],
        id: PermitId,
        valid: Duration,
    ) -> Result<(), StoreError> {
        let name = PermitName { name: &self.name, key, id: id.0 };
        self.store.put_permit_location(&name, valid).await
    }

    async fn take(&self, key: &[u8], id: u128, ttl: Duration) -> Result<(), AcquireError> {
        let name = PermitName { name: &self.name, key, id };
        let reply = self.store.acquire_permit(&name, self.max, ttl).await;
        let reply = reply.map_err(AcquireError::Store)?;
        match reply.is_held {
            true => Ok(()),
            false => Err(AcquireError::NoPermits { max: self.max, free_in: reply.free_in }),
        }
    }

    fn release_in_background(&self, key: &[u8], id: PermitId) {
        let Ok(slot) = RELEASING.try_acquire() else { return };
        let (limit, key) = (self.clone(), Box::<[u8]>::from(key));
        tokio::spawn(async move {
            for attempt in 0..RELEASE_TRIES {
                tokio::time::sleep(RELEASE_AFTER * 2_u32.pow(attempt)).await;
                if limit.release(&*key, id).await.is_ok() {
                    break;
                }
            }
            drop(slot);
        });
    }
}

/// The id of a permit that is held in the store: 128 random bits, written as 32 hexadecimal digits.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::SharedConcurrencyLimit;
///
/// # async fn f(exports: SharedConcurrencyLimit) -> Result<(), Box<dyn std::error::Error>> {
/// let id = exports.hold("tenant-7", Duration::from_secs(60)).await?;
/// // Another process that gets the text of the id can release the permit.
/// let text = id.to_string();
/// exports.release("tenant-7", text.parse()?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PermitId(pub(crate) u128);

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for PermitId {
    type Err = InvalidPermitId;

    fn from_str(text: &str) -> Result<Self, InvalidPermitId> {
        let is_plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_plain);
        number.map(Self).ok_or(InvalidPermitId)
    }
}

/// The text is not a [`PermitId`].
///
/// ```
/// use ratekeeper::shared::{InvalidPermitId, PermitId};
///
/// assert_eq!("17".parse::<PermitId>(), Err(InvalidPermitId));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a permit's id has 32 hexadecimal digits")]
pub struct InvalidPermitId;

/// A permit to be in flight until it is dropped.
///
/// ```
/// use ratekeeper::SharedConcurrencyLimit;
///
/// # async fn f(exports: SharedConcurrencyLimit) -> Result<(), Box<dyn std::error::Error>> {
/// let permit = exports.acquire("tenant-7").await?;
/// // … export …
/// if permit.is_lost() {
///     eprintln!("the store was unavailable for too long; another export may have started");
/// }
/// # Ok(()) }
/// ```
#[must_use = "a permit that is dropped is released"]
pub struct SharedPermit {
    held: Arc<PermitHold>,
    renewal: AbortHandle,
}

struct PermitHold {
    limit: SharedConcurrencyLimit,
    key: Box<[u8]>,
    id: u128,
    is_lost: AtomicBool,
}

impl PermitHold {
    fn name(&self) -> PermitName<'_> {
        PermitName { name: &self.limit.name, key: &self.key, id: self.id }
    }
}

impl fmt::Debug for SharedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPermit").field("limit", &self.held.limit).finish_non_exhaustive()
    }
}

impl SharedPermit {
    fn new(limit: SharedConcurrencyLimit, key: Box<[u8]>, id: u128) -> Self {
        let held = Arc::new(PermitHold { limit, key, id, is_lost: AtomicBool::new(false) });
        let renewal = tokio::spawn(renew(held.clone())).abort_handle();
        Self { held, renewal }
    }

    /// Returns whether it has expired because it could not be renewed, so that another request may hold it.
    pub fn is_lost(&self) -> bool {
        self.held.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        self.renewal.abort();
        let held = self.held.clone();
        // Without a runtime it cannot be released, and expires.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = held.limit.store.release_permit(&held.name()).await;
            });
        }
    }
}

async fn renew(held: Arc<PermitHold>) {
    loop {
        tokio::time::sleep(held.limit.ttl / 3).await;
        let SharedConcurrencyLimit { max, ttl, store, .. } = &held.limit;
        // If the store is unavailable, the next attempt may still be in time.
        if let Ok(reply) = store.renew_permit(&held.name(), *max, *ttl).await {
            held.is_lost.store(!reply.is_held, Ordering::Release);
        }
    }
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
    /// The store is unavailable.
    #[error(transparent)]
    Store(StoreError),
}
