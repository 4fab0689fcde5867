//! The listeners as functions of bytes.

use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};

pub use super::grpc::rls::fuzzing::descriptors;
pub use super::http::fuzzing::http_api;
pub use super::resp::fuzzing::resp;

/// Runs a future to completion.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));
    RUNTIME.block_on(future)
}
