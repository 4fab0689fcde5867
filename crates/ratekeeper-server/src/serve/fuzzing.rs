//! The doors as functions of bytes.

use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};

pub use super::envoy::fuzzing::descriptors;
pub use super::http::fuzzing::questions;
pub use super::resp::fuzzing::resp;

/// Waits for what ought not to take long.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));
    RUNTIME.block_on(future)
}
