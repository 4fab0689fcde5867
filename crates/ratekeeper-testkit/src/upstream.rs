//! An HTTP/1 upstream whose responses the test defines.

use std::mem;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::http1::{Head, Wire};

/// A server that listens until the process exits, with a thread for each connection.
pub struct Backend {
    address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    connections: AtomicUsize,
    requests: AtomicUsize,
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
        let address = listener.local_addr().expect("a bound port");
        let (counts, serve) = (Arc::new(Counts::default()), Arc::new(serve));
        let counted = Arc::clone(&counts);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (serve, counted) = (Arc::clone(&serve), Arc::clone(&counted));
                thread::spawn(move || {
                    let mut wire = Wire::new(stream);
                    let mut is_first = true;
                    while let Ok(head) = wire.try_head() {
                        let connections = usize::from(mem::take(&mut is_first));
                        counted.connections.fetch_add(connections, Ordering::SeqCst);
                        counted.requests.fetch_add(1, Ordering::SeqCst);
                        if !serve(head, &mut wire) {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, counts }
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
        self.address
    }

    /// Returns `http://ADDRESS`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns how many requests it has received.
    pub fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// Returns on how many connections it has received requests.
    pub fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::SeqCst)
    }
}

/// Sends a response with this body, and returns whether the connection is still open.
pub fn respond(wire: &mut Wire, text: &str) -> bool {
    let length = text.len();
    wire.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}")).is_ok()
}

/// Returns an address on which nothing listens.
pub fn unused_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound port")
}
