//! Permits that a fleet shares: at most so many in flight, wherever they are.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tollgate_stores::redis::PermitName;
use tollgate_stores::{RedisStore, StoreError};

use super::random::random_number;

/// How long a permit is held unless it is renewed: so long are those of a holder that has died lost.
const LIVES: Duration = Duration::from_secs(10);

/// At most so many in flight for each key, in the whole fleet.
///
/// A permit is renewed in the background as long as it is there, and given back when it is dropped. If
/// its holder dies, it comes back by itself after ten seconds, or whatever
/// [`SharedConcurrency::with_lives`] says.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use tollgate::{RedisConfig, SharedConcurrency};
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
        let id = random_number();
        let name = PermitName { name: &self.name, key: key.as_ref(), id };
        let answer = self.store.acquire_permit(&name, self.max, self.lives).await;
        let answer = answer.map_err(AcquireError::Store)?;
        if !answer.is_held {
            return Err(AcquireError::NoPermits { max: self.max, free_in: answer.free_in });
        }
        Ok(SharedPermit::new(self.clone(), key.as_ref().into(), id))
    }
}

/// The right to be in flight, until it is dropped.
#[must_use = "dropped, it is given back"]
pub struct SharedPermit {
    held: Arc<Held>,
    renewal: AbortHandle,
}

struct Held {
    of: SharedConcurrency,
    key: Box<[u8]>,
    id: u64,
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
    fn new(of: SharedConcurrency, key: Box<[u8]>, id: u64) -> Self {
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
