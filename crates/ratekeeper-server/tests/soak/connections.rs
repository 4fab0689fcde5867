//! More connections than the connection limit.

use std::net::{SocketAddr, TcpStream};

use ratekeeper_testkit::wait_until;

use crate::client::Client;
use crate::{Everything, setting};

/// A listener, its metrics, and a request with the first line of its response.
struct Listener<'e> {
    name: &'e str,
    address: SocketAddr,
    admin: SocketAddr,
    open: &'e str,
    rejected: &'e str,
    request: &'e str,
    response: &'e str,
}

impl Listener<'_> {
    fn number(&self, metric: &str) -> usize {
        let page = Client::connect(self.admin).get("/metrics").body;
        let line = page.lines().find(|line| line.starts_with(metric)).expect("a metric");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn is_served(&self) -> bool {
        let mut client = Client::connect(self.address);
        client.0.try_send(self.request).is_ok()
            && client.0.line().is_ok_and(|line| line == self.response)
    }

    /// Opens this many connections and holds them. Those above the limit are rejected, and when they are
    /// closed, connections are accepted again.
    fn flood(&self, count: usize, max: usize) {
        assert!(self.is_served());
        let open = |_| TcpStream::connect(self.address).expect("the kernel accepts it");
        let all: Vec<_> = (0..count).map(open).collect();
        wait_until("all are accepted or rejected", || {
            let (open, rejected) = (self.number(self.open), self.number(self.rejected));
            assert!(open <= max + 100, "{open} connections are open");
            open >= max && rejected >= count - max
        });
        let health = Client::connect(self.admin).get("/healthz").status();
        assert_eq!(health, 200, "it stays healthy");
        let rejected = self.number(self.rejected);
        drop(all);
        wait_until("connections are accepted again", || self.is_served());
        println!("{}: {count} connections, {max} served, {rejected} rejected", self.name);
    }
}

#[test]
fn connections_above_the_limit_are_rejected_until_others_close() {
    let count = setting("SOAK_CONNECTIONS", 600);
    let max = count / 2;
    let limit = max.to_string();
    let all = Everything::start(&["--max-connections", &limit]);
    let (server, gateway) = (&all.server, &all.gateway);
    let of_gateway = gateway.admin();
    let get = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    for listener in [
        Listener {
            name: "http",
            address: server.http(),
            admin: server.admin(),
            open: "ratekeeper_connections{listener=\"http\"}",
            rejected: "ratekeeper_connections_rejected_total{listener=\"http\"}",
            request: get,
            response: "HTTP/1.1 200 OK",
        },
        Listener {
            name: "resp",
            address: server.resp(),
            admin: server.admin(),
            open: "ratekeeper_connections{listener=\"resp\"}",
            rejected: "ratekeeper_connections_rejected_total{listener=\"resp\"}",
            request: "PING\r\n",
            response: "+PONG",
        },
        Listener {
            name: "gateway",
            address: gateway.address(),
            admin: of_gateway,
            open: "ratekeeper_gateway_connections",
            rejected: "ratekeeper_gateway_rejected_total{reason=\"connections\"}",
            request: get,
            response: "HTTP/1.1 200 OK",
        },
    ] {
        listener.flood(count, max);
    }
}
