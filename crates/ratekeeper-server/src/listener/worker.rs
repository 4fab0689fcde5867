//! Worker threads: each has a runtime, a clone of the listener and connections of its own.

use std::future::Future;
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use tokio::runtime::Builder;

use super::accept::{self, ConnectionHandler, ListenerConfig};
use super::socket::ListeningSocket;

/// Returns how many workers a listener has: so many, or one for each core.
pub(crate) fn available_workers(workers: Option<u16>) -> usize {
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    workers.map_or_else(cores, usize::from)
}

/// Starts worker threads for a listener. `handler` is awaited once on each worker's runtime, with the
/// worker's index.
pub(crate) fn start_workers<H, F, L>(
    name: &str,
    workers: usize,
    listener: &L,
    config: &ListenerConfig,
    handler: impl Fn(usize) -> F,
) -> io::Result<()>
where
    H: ConnectionHandler,
    F: Future<Output = io::Result<H>> + Send + 'static,
    L: ListeningSocket,
{
    for index in 0..workers {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (listener, handler, config) = (listener.try_clone()?, handler(index), config.clone());
        let serve = async move {
            let served = async { accept::serve(listener, Arc::new(handler.await?), config).await };
            if let Err(error) = served.await {
                tracing::error!(%error, "a worker cannot listen");
            }
            // Connections go on; the process ends when they have.
            std::future::pending::<()>().await;
        };
        let thread = thread::Builder::new().name(format!("{name}-{index}"));
        thread.spawn(move || runtime.block_on(serve))?;
    }
    Ok(())
}
