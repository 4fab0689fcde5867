//! More connections than there may be.

use std::net::{SocketAddr, TcpStream};

use ratekeeper_testkit::wait_until;

use crate::client::Client;
use crate::{Everything, setting};

/// What connections may a listener have, what is asked of it, and where its numbers are.
struct Listener<'e> {
    name: &'e str,
    address: SocketAddr,
    admin: SocketAddr,
    open: &'e str,
    rejected: &'e str,
    ask: &'e str,
    says: &'e str,
}

impl Listener<'_> {
    fn number(&self, metric: &str) -> usize {
        let page = Client::connect(self.admin).get("/metrics").body;
        let line = page.lines().find(|line| line.starts_with(metric)).expect("a metric");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn is_served(&self) -> bool {
        let mut client = Client::connect(self.address);
        client.0.try_send(self.ask).is_ok() && client.0.line().is_ok_and(|line| line == self.says)
    }

    /// Opens so many connections and holds them. Some more than may be are rejected, and when the rest
    /// goes there is room again.
    fn flood(&self, count: usize, max: usize) {
        assert!(self.is_served());
        let open = |_| TcpStream::connect(self.address).expect("the kernel takes it");
        let all: Vec<_> = (0..count).map(open).collect();
        wait_until("all have been dealt with", || {
            let (open, rejected) = (self.number(self.open), self.number(self.rejected));
            assert!(open <= max + 100, "{open} connections are open");
            open >= max && rejected >= count - max
        });
        let health = Client::connect(self.admin).get("/healthz").status();
        assert_eq!(health, 200, "it is healthy meanwhile");
        let rejected = self.number(self.rejected);
        drop(all);
        wait_until("there is room again", || self.is_served());
        println!("{}: {count} connections, {max} served, {rejected} rejected", self.name);
    }
}

#[test]
fn connections_beyond_the_limit_are_rejected_and_there_is_room_again_later() {
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
            open: "ratekeeper_connections{door=\"http\"}",
            rejected: "ratekeeper_connections_rejected_total{door=\"http\"}",
            ask: get,
            says: "HTTP/1.1 200 OK",
        },
        Listener {
            name: "resp",
            address: server.resp(),
            admin: server.admin(),
            open: "ratekeeper_connections{door=\"resp\"}",
            rejected: "ratekeeper_connections_rejected_total{door=\"resp\"}",
            ask: "PING\r\n",
            says: "+PONG",
        },
        Listener {
            name: "gateway",
            address: gateway.address(),
            admin: of_gateway,
            open: "ratekeeper_gateway_connections",
            rejected: "ratekeeper_gateway_rejected_total{reason=\"connections\"}",
            ask: get,
            says: "HTTP/1.1 200 OK",
        },
    ] {
        listener.flood(count, max);
    }
}
