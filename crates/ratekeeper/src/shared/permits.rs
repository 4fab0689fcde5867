//! Permits that a fleet shares: at most so many in flight, wherever they are.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratekeeper_stores::redis::PermitName;
use ratekeeper_stores::{RedisStore, StoreError};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::random::unguessable;

/// How long a permit is held unless it is renewed: so long are those of a holder that has died lost.
const LIVES: Duration = Duration::from_secs(10);
/// How often it is tried to release a permit that may have been granted although no reply came, and how
/// long to wait before the first time. Each further wait is twice as long: 25 seconds in all.
const RELEASE_TRIES: u32 = 8;
const RELEASE_AFTER: Duration = Duration::from_millis(100);
/// So many at a time. Beyond that, permits without a holder stay held until their time is over.
static RELEASING: Semaphore = Semaphore::const_new(1_000);

/// At most so many in flight for each key, in the whole fleet.
///
/// A permit is renewed in the background as long as it is there, and given back when it is dropped. If
/// its holder dies, it comes back by itself after ten seconds, or whatever
/// [`SharedConcurrency::with_lives`] says. [`SharedConcurrency::hold`] has permits that are bound to a time
/// instead of a holder.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ratekeeper::{RedisConfig, SharedConcurrency};
///
/// let store = RedisConfig::new("redis://127.0.0.1:6379").open()?;
/// let exports = SharedConcurrency::new("exports", 5, store);
/// let permit = exports.acquire("tenant-7").await?;
/// // … at most five of tenant-7's exports run at a time, on all nodes together …
/// drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedConcurrency {
    name: Arc<str>,
    max: u64,
    lives: Duration,
    store: RedisStore,
}

impl fmt::Debug for SharedConcurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, max, .. } = self;
        f.debug_struct("SharedConcurrency").field("name", name).field("max", max).finish()
    }
}

impl SharedConcurrency {
    /// At most `max` for each key. Those of the same name share their permits.
    pub fn new(name: &str, max: u64, store: RedisStore) -> Self {
        Self { name: name.into(), max, lives: LIVES, store }
    }

    /// How long a permit is held unless it is renewed; at least a tenth of a second.
    #[must_use]
    pub fn with_lives(self, lives: Duration) -> Self {
        Self { lives: lives.max(Duration::from_millis(100)), ..self }
    }

    /// A permit for this key, if there is one.
    pub async fn acquire<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
    ) -> Result<SharedPermit, AcquireError> {
        let id = unguessable();
        self.take(key.as_ref(), id, self.lives).await?;
        Ok(SharedPermit::new(self.clone(), key.as_ref().into(), id))
    }

    /// A permit that is held for this long, at least a millisecond, or until it is released: also when this
    /// process is gone. Whoever knows its id can release it, in any process
    /// ([`SharedConcurrency::release`]).
    ///
    /// # Errors
    ///
    /// If all permits are held, or the store does not answer. In that case it may have granted the permit all the
    /// same; it is then released in the background, and runs out by itself if that fails too.
    pub async fn hold<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        valid: Duration,
    ) -> Result<PermitId, AcquireError> {
        let (key, id) = (key.as_ref(), unguessable());
        let taken = self.take(key, id, valid.max(Duration::from_millis(1))).await;
        if let Err(AcquireError::Store(_)) = taken {
            self.release_in_background(key, PermitId(id));
        }
        taken.map(|()| PermitId(id))
    }

    /// Releases a permit that [`SharedConcurrency::hold`] has given, and returns whether it was still held. A
    /// permit that was released before, or has run out, stays as it is.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    pub async fn release<K: AsRef<[u8]> + ?Sized>(
        &self,
        key: &K,
        id: PermitId,
    ) -> Result<bool, StoreError> {
        let name = PermitName { name: &self.name, key: key.as_ref(), id: id.0 };
        self.store.release_permit(&name).await
    }

    async fn take(&self, key: &[u8], id: u128, lives: Duration) -> Result<(), AcquireError> {
        let name = PermitName { name: &self.name, key, id };
        let answer = self.store.acquire_permit(&name, self.max, lives).await;
        let answer = answer.map_err(AcquireError::Store)?;
        match answer.is_held {
            true => Ok(()),
            false => Err(AcquireError::NoPermits { max: self.max, free_in: answer.free_in }),
        }
    }

    fn release_in_background(&self, key: &[u8], id: PermitId) {
        let Ok(turn) = RELEASING.try_acquire() else { return };
        let (of, key) = (self.clone(), Box::<[u8]>::from(key));
        tokio::spawn(async move {
            for attempt in 0..RELEASE_TRIES {
                tokio::time::sleep(RELEASE_AFTER * 2_u32.pow(attempt)).await;
                if of.release(&*key, id).await.is_ok() {
                    break;
                }
            }
            drop(turn);
        });
    }
}

/// Names a permit that is held in the store: 128 random bits. As text, 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PermitId(u128);

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

/// The text is no [`PermitId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPermitId;

impl fmt::Display for InvalidPermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a permit's id has 32 hexadecimal digits")
    }
}

impl std::error::Error for InvalidPermitId {}

/// The right to be in flight, until it is dropped.
#[must_use = "dropped, it is given back"]
pub struct SharedPermit {
    held: Arc<Held>,
    renewal: AbortHandle,
}

struct Held {
    of: SharedConcurrency,
    key: Box<[u8]>,
    id: u128,
    is_lost: AtomicBool,
}

impl Held {
    fn name(&self) -> PermitName<'_> {
        PermitName { name: &self.of.name, key: &self.key, id: self.id }
    }
}

impl fmt::Debug for SharedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPermit").field("of", &self.held.of).finish_non_exhaustive()
    }
}

impl SharedPermit {
    fn new(of: SharedConcurrency, key: Box<[u8]>, id: u128) -> Self {
        let held = Arc::new(Held { of, key, id, is_lost: AtomicBool::new(false) });
        let renewal = tokio::spawn(renew(held.clone())).abort_handle();
        Self { held, renewal }
    }

    /// Has it run out because it could not be renewed, and gone to somebody else?
    pub fn is_lost(&self) -> bool {
        self.held.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        self.renewal.abort();
        let held = self.held.clone();
        // Without a runtime it cannot be given back, and comes back by itself.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = held.of.store.release_permit(&held.name()).await;
            });
        }
    }
}

async fn renew(held: Arc<Held>) {
    loop {
        tokio::time::sleep(held.of.lives / 3).await;
        let SharedConcurrency { max, lives, store, .. } = &held.of;
        // If the store does not answer, the next attempt may still be in time.
        if let Ok(answer) = store.renew_permit(&held.name(), *max, *lives).await {
            held.is_lost.store(!answer.is_held, Ordering::Release);
        }
    }
}

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireError {
    /// All of them are held.
    NoPermits {
        /// How many there are.
        max: u64,
        /// When the next one becomes free, should its holder have died.
        free_in: Duration,
    },
    /// The store does not answer.
    Store(StoreError),
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPermits { max, .. } => write!(f, "all {max} permits are held"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AcquireError {}
