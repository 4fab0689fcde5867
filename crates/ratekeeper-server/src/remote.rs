//! A simulation whose decisions are made in Redis, at the times of its trace.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use ratekeeper_core::{Decision, Limit};
use ratekeeper_lab::{Arrival, Decider};
use ratekeeper_stores::{Charge, Op, RedisConfig, RedisStore, Store, StoreError};
use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;

/// A simulation is in no hurry.
const DEADLINE: Duration = Duration::from_secs(10);

/// An error of a remote store, with its address.
#[derive(Debug, thiserror::Error)]
#[error("{address}")]
struct RemoteStoreError {
    address: String,
    source: StoreError,
}

impl RemoteStoreError {
    fn new(store: &RedisStore, source: StoreError) -> Self {
        Self { address: store.address().to_string(), source }
    }
}

/// Clones share their connection.
#[derive(Clone)]
pub(crate) struct RemoteDecider {
    runtime: Rc<Runtime>,
    store: RedisStore,
}

impl RemoteDecider {
    /// Connects, so that a wrong address is reported before any work is done. Each run has keys of its own.
    pub(crate) fn open(url: &str) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::io)?;
        let prefix = format!("ratekeeper-simulate-{:016x}", random_number());
        let config = RedisConfig::new(url).with_prefix(&prefix).with_given_time();
        let store = config.with_deadline(DEADLINE).open().map_err(Failure::input)?;
        runtime.block_on(store.ping()).map_err(|error| failure(&store, error))?;
        Ok(Self { runtime: Rc::new(runtime), store })
    }

    async fn check(&self, limit: &Limit, arrival: &Arrival) -> Result<Decision, StoreError> {
        let charge = Charge::new(limit, &arrival.key).cost(arrival.cost);
        let verdict = self.store.apply(Op::Check, &[charge], arrival.at).await?;
        Ok(*verdict)
    }
}

impl Decider for RemoteDecider {
    fn decide(
        &self,
        limit: &Limit,
        arrivals: &[Arrival],
    ) -> Result<Vec<Decision>, Box<dyn Error + Send + Sync>> {
        let Some((first, rest)) = arrivals.split_first() else { return Ok(Vec::new()) };
        let decided = self.runtime.block_on(async {
            // The first alone: should the server not know the script, it learns it, and nothing that
            // comes after can overtake.
            let mut decisions = vec![self.check(limit, first).await?];
            if self.store.is_cluster() {
                for arrival in rest {
                    decisions.push(self.check(limit, arrival).await?);
                }
                return Ok(decisions);
            }
            decisions
                .extend(in_order(rest.iter().map(|arrival| self.check(limit, arrival))).await?);
            Ok(decisions)
        });
        Ok(decided.map_err(|source| RemoteStoreError::new(&self.store, source))?)
    }
}

/// Runs all of them together, each begun after the one before it: one connection carries them in that
/// order.
async fn in_order<T, F>(futures: impl Iterator<Item = F>) -> Result<Vec<T>, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut running: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<Result<T, StoreError>>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, done) in running.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

fn failure(store: &RedisStore, error: StoreError) -> Failure {
    let is_permanent = error.is_permanent();
    let error = RemoteStoreError::new(store, error);
    if is_permanent { Failure::input(error) } else { Failure::io(error) }
}

fn random_number() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
