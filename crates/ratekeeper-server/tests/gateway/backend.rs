//! An upstream that does exactly what the test says.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::client::{Head, Wire};

/// Listens until the process ends. Each connection has a thread.
pub(crate) struct Backend {
    address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    connections: AtomicUsize,
    requests: AtomicUsize,
}

impl Backend {
    /// `serve` answers a request whose body it has yet to read; if it returns false the connection
    /// is closed.
    pub(crate) fn start(serve: impl Fn(Head, &mut Wire) -> bool + Send + Sync + 'static) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), serve)
    }

    pub(crate) fn at(
        address: SocketAddr,
        serve: impl Fn(Head, &mut Wire) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let (counts, serve) = (Arc::new(Counts::default()), Arc::new(serve));
        let counted = Arc::clone(&counts);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.connections.fetch_add(1, Ordering::SeqCst);
                let (serve, counted) = (Arc::clone(&serve), Arc::clone(&counted));
                thread::spawn(move || {
                    let mut wire = Wire::new(stream);
                    while let Ok(head) = wire.try_head() {
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

    /// Answers every request with the same text.
    pub(crate) fn says(text: &'static str) -> Self {
        Self::start(move |head, wire| wire.try_body(&head).is_ok() && answer(wire, text))
    }

    /// Answers with what it has received: the head, and then the body.
    pub(crate) fn echo() -> Self {
        Self::start(|head, wire| {
            let Ok(body) = wire.try_body(&head) else { return false };
            let mut text = head.line.clone() + "\n";
            for (name, value) in &head.headers {
                text += &format!("{}: {value}\n", name.to_lowercase());
            }
            text += "\n";
            text += &String::from_utf8_lossy(&body);
            answer(wire, &text)
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::SeqCst)
    }
}

/// An ordinary answer. Returns whether the connection goes on.
pub(crate) fn answer(wire: &mut Wire, text: &str) -> bool {
    let length = text.len();
    wire.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}")).is_ok()
}

/// An address at which nobody listens.
pub(crate) fn nobody() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound port")
}
