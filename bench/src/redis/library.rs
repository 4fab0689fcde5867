//! Load through the library, and through a script over the same client without the library.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, Value, cmd};
use ratekeeper::{Clock, SystemClock};
use ratekeeper_core::{Limit, Micros};
use ratekeeper_stores::{Charge, Op, RedisConfig, RedisStore, Store};
use tokio::runtime::{Builder, Runtime};

use super::KEYS;
use super::scripts;

/// Long enough that no call fails on a busy machine.
const DEADLINE: Duration = Duration::from_secs(5);

/// A client that makes one call after the other.
pub trait Caller: Clone + Send + Sync + 'static {
    fn call(&self, key: &str) -> impl Future<Output = ()> + Send;
}

#[derive(Clone)]
pub struct Library {
    store: RedisStore,
    limit: Arc<Limit>,
}

impl Library {
    pub fn new(url: &str) -> Self {
        Self { store: store(url), limit: Arc::new(scripts::bucket()) }
    }
}

impl Caller for Library {
    async fn call(&self, key: &str) {
        let charges = [Charge::new(&self.limit, key)];
        let verdict = self.store.apply(Op::Check, &charges, Micros::new(0)).await;
        assert!(verdict.expect("a verdict").allowed());
    }
}

/// One hot key under a limit that is never reached, decided by the store or on lease.
#[derive(Clone)]
pub struct HotKey<S> {
    store: S,
    limit: Arc<Limit>,
}

impl<S> HotKey<S> {
    pub fn new(store: S) -> Self {
        Self { store, limit: Arc::new(Limit::sliding_counter("60000000/s").expect("a limit")) }
    }
}

impl<S: Store + Clone + Send + Sync + 'static> Caller for HotKey<S> {
    async fn call(&self, _: &str) {
        let charges = [Charge::new(&self.limit, "hot")];
        let verdict = self.store.apply(Op::Check, &charges, SystemClock.now()).await;
        assert!(verdict.expect("a verdict").allowed());
    }
}

pub fn store(url: &str) -> RedisStore {
    RedisConfig::new(url).with_deadline(DEADLINE).open().expect("an address")
}

/// The client library that ours uses, with a script and nothing else.
#[derive(Clone)]
pub struct BareClient {
    connection: MultiplexedConnection,
    hash: Arc<str>,
    /// The arguments before and after the caller's key.
    around: (&'static str, &'static str),
    args: Arc<[Vec<u8>]>,
}

impl BareClient {
    async fn new(
        url: &str,
        source: &str,
        around: (&'static str, &'static str),
        args: &[&[u8]],
    ) -> Self {
        let client = Client::open(url).expect("an address");
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        connection.set_response_timeout(DEADLINE);
        let hash: String = cmd("SCRIPT")
            .arg("LOAD")
            .arg(source)
            .query_async(&mut connection)
            .await
            .expect("a script");
        let args = args.iter().map(|arg| arg.to_vec()).collect();
        Self { connection, hash: hash.into(), around, args }
    }

    /// With the naive token bucket.
    pub async fn with_naive_hash(url: &str) -> Self {
        let args = scripts::TOKEN_HASH_ARGS.map(str::as_bytes);
        Self::new(url, scripts::TOKEN_HASH, ("ratelimit:api:", ""), &args).await
    }

    /// With our token bucket, without reading its reply.
    pub async fn with_our_script(url: &str) -> Self {
        let limits = [scripts::bucket()];
        let (source, terms) = (scripts::source(&limits), scripts::packed(&limits));
        Self::new(url, &source, ("ratekeeper:1:12{=", "}tapi"), &[b"", b"c", &terms]).await
    }
}

impl Caller for BareClient {
    async fn call(&self, key: &str) {
        let mut command = cmd("EVALSHA");
        let key = [self.around.0, key, self.around.1].concat();
        command.arg(&*self.hash).arg(1).arg(key);
        for arg in &*self.args {
            command.arg(&arg[..]);
        }
        let reply = command.query_async::<Value>(&mut self.connection.clone()).await;
        std::hint::black_box(reply.expect("a reply"));
    }
}

/// Throughput and latency of the callers.
#[derive(Clone, Copy)]
pub struct Served {
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// One thread for all callers, because they share one core. It is a multi-thread runtime, as servers
/// have: a task that is woken runs next, so requests are sent while others are still being written. A
/// `current_thread` runtime collects them first, and the server waits.
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// Runs this many callers at once, each of which calls again as soon as it has a reply.
pub async fn serve<C: Caller>(caller: &C, callers: usize, within: Duration) -> Served {
    let keys: Arc<[String]> = (0..KEYS).map(|key| format!("{key:012}")).collect();
    caller.call(&keys[0]).await;
    let (started, mut tasks) = (Instant::now(), Vec::with_capacity(callers));
    for number in 0..callers {
        tasks.push(tokio::spawn(call_until(
            caller.clone(),
            keys.clone(),
            number,
            started + within,
        )));
    }
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await.expect("a caller that is done"));
    }
    let seconds = started.elapsed().as_secs_f64();
    waits.sort_unstable();
    let at = |part: f64| f64::from(waits[(waits.len() as f64 * part) as usize]) / 1e3;
    Served { per_second: waits.len() as f64 / seconds, p50_us: at(0.5), p99_us: at(0.99) }
}

/// Returns the latency of each call in nanoseconds.
async fn call_until<C: Caller>(
    caller: C,
    keys: Arc<[String]>,
    number: usize,
    end: Instant,
) -> Vec<u32> {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(number as u64 + 1);
    let (mut waits, mut last) = (Vec::new(), Instant::now());
    while last < end {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        caller.call(&keys[(random >> 32) as usize % keys.len()]).await;
        let now = Instant::now();
        waits.push((now - last).as_nanos() as u32);
        last = now;
    }
    waits
}
