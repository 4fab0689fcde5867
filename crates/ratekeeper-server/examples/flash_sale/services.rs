//! The services of the shop: orders, which calls the inventory, which calls the database.

#![allow(clippy::disallowed_methods, reason = "services take real time")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ratekeeper_testkit::http1::Client;
use ratekeeper_testkit::upstream::{Backend, respond};
use ratekeeper_testkit::{Helper, PostgresConnection};

/// Connections of the inventory to the database.
pub(crate) const CONNECTIONS: usize = 40;

/// Requests that the order service works on at a time.
const WORKERS: usize = 64;

/// How long a sale keeps a connection to the database busy.
pub(crate) const SALE: Duration = Duration::from_millis(200);

/// How long a page of the catalogue takes, which needs no inventory.
const PAGE: Duration = Duration::from_millis(5);

/// The roles of this program, and the environment variables that they need.
pub(crate) const INVENTORY: &str = "inventory";
pub(crate) const ORDERS: &str = "orders";
pub(crate) const DATABASE_ADDRESS: &str = "DATABASE";
pub(crate) const INVENTORY_ADDRESS: &str = "INVENTORY";

fn address(variable: &str) -> SocketAddr {
    let text = std::env::var(variable).expect("an address in the environment");
    text.parse().expect("an address")
}

/// Sells one item for each request, over a pool of connections to the database.
pub(crate) fn inventory() {
    let open = |_| PostgresConnection::open(address(DATABASE_ADDRESS)).expect("a connection");
    let pool = Arc::new(Pool::new((0..CONNECTIONS).map(open)));
    let sale = format!("insert into sold values (1); select pg_sleep({})", SALE.as_secs_f64());
    let backend = Backend::start(move |head, wire| {
        if wire.try_body(&head).is_err() {
            return false;
        }
        let mut connection = pool.take();
        let sold = connection.query(&sale);
        pool.put(connection);
        sold.is_ok() && respond(wire, "sold")
    });
    Helper::serve(backend.address().port());
}

/// Serves the catalogue, and sells by calling the inventory. All requests share the workers.
pub(crate) fn orders() {
    let connect = |_| Client::connect(address(INVENTORY_ADDRESS));
    let workers = Arc::new(Pool::new((0..WORKERS).map(connect)));
    let backend = Backend::start(move |head, wire| {
        if wire.try_body(&head).is_err() {
            return false;
        }
        let mut inventory = workers.take();
        let text = match head.target() {
            "/checkout" => inventory.get("/sell").body,
            _ => {
                thread::sleep(PAGE);
                "a page".to_string()
            }
        };
        workers.put(inventory);
        respond(wire, &text)
    });
    Helper::serve(backend.address().port());
}

/// Things that are lent, first come, first served. The queue has no bound, as in many pools.
struct Pool<T> {
    state: Mutex<PoolState<T>>,
}

struct PoolState<T> {
    free: Vec<T>,
    waiting: VecDeque<Sender<T>>,
}

impl<T> Pool<T> {
    fn new(things: impl Iterator<Item = T>) -> Self {
        let state = PoolState { free: things.collect(), waiting: VecDeque::new() };
        Self { state: Mutex::new(state) }
    }

    fn take(&self) -> T {
        let (sender, receiver) = channel();
        {
            let mut state = self.state.lock().unwrap();
            match state.free.pop() {
                Some(thing) => return thing,
                None => state.waiting.push_back(sender),
            }
        }
        receiver.recv().expect("it is returned")
    }

    fn put(&self, thing: T) {
        let mut state = self.state.lock().unwrap();
        match state.waiting.pop_front() {
            Some(sender) => sender.send(thing).expect("it waits"),
            None => state.free.push(thing),
        }
    }
}
