//! The HTTP API as a function of bytes: a line with the path, then the body.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use super::{HttpApi, routes};
use crate::serve::fuzzing::block_on;
use crate::serve::request_metrics::RequestMetrics;

/// Sends a request, and asserts that the response is not a server error.
pub fn http_api(bytes: &[u8]) {
    static API: LazyLock<Arc<HttpApi>> = LazyLock::new(|| {
        let metrics = RequestMetrics::new(Arc::default());
        HttpApi::new(&crate::fuzzing::limiter(), Arc::default(), None, metrics)
    });
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (path, body) = bytes.split_at(at);
    let body = Bytes::copy_from_slice(body.get(1..).unwrap_or_default());
    let Ok(request) = Request::post(path).body(Full::new(body)) else { return };
    let peer = IpAddr::from([127, 0, 0, 1]);
    let response = block_on(routes::handle(&API, request, peer));
    assert!(!response.status().is_server_error(), "{}", response.status());
}
