//! An HTTP/1 upstream whose responses the test defines.

use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use crate::http_server::HttpServer;
use crate::http1::{Head, Wire, encode_response};

/// Connections of a [`Backend`] at a time; further ones are closed.
const CONNECTIONS_MAX: usize = 4096;

/// A server that listens until the process exits, with a thread for each connection.
pub struct Backend {
    /// Never dropped, so that it never stops.
    server: ManuallyDrop<HttpServer>,
}

impl Backend {
    /// Starts one on any free port. `serve` responds to a request whose body it has yet to read; if it
    /// returns false, the connection is closed.
    pub fn start(serve: impl Fn(Head, &mut Wire) -> bool + Send + Sync + 'static) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), serve)
    }

    /// Starts one on this address.
    pub fn at(
        address: SocketAddr,
        serve: impl Fn(Head, &mut Wire) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a free port");
        let serve = move |head: Head, wire: &mut Wire, _: &_| serve(head, wire);
        Self { server: ManuallyDrop::new(HttpServer::start(listener, CONNECTIONS_MAX, serve)) }
    }

    /// Starts one that responds to every request with the same text.
    pub fn says(text: &'static str) -> Self {
        Self::start(move |head, wire| wire.try_body(&head).is_ok() && respond(wire, text))
    }

    /// Starts one that responds with what it has received: the head, and then the body.
    pub fn echo() -> Self {
        Self::start(|head, wire| {
            let Ok(body) = wire.try_body(&head) else { return false };
            let mut text = head.line.clone() + "\n";
            for (name, value) in &head.headers {
                text += &format!("{}: {value}\n", name.to_lowercase());
            }
            text += "\n";
            text += &String::from_utf8_lossy(&body);
            respond(wire, &text)
        })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns `http://ADDRESS`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Returns how many requests it has received.
    pub fn requests(&self) -> usize {
        self.server.requests()
    }

    /// Returns on how many connections it has received requests.
    pub fn connections(&self) -> usize {
        self.server.connections()
    }
}

/// Sends a response with this body, and returns whether the connection is still open.
pub fn respond(wire: &mut Wire, text: &str) -> bool {
    wire.try_send(encode_response(200, &[], text.as_bytes())).is_ok()
}

/// Returns an address on which nothing listens.
pub fn unused_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound port")
}
