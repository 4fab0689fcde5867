//! Reservations and permits.

use std::time::Duration;

use super::client::TestClient;

/// Returns the id in a reply.
fn id_of(reply: &str) -> String {
    let mut words = reply.split([' ', '[', ']']);
    words.find(|word| word.len() == 32).unwrap().to_string()
}

#[test]
fn a_reservation_is_settled_once() {
    let mut client = TestClient::new(&[]);
    let reserved = client.send("RK.RESERVE ann 100/hour COST 60 NAME tokens VALID 60000").0;
    assert!(reserved.contains("allowed 1") && reserved.contains("remaining 40"), "{reserved}");
    let id = id_of(&reserved);
    let denied = client.send("rk.reserve ann 100/hour cost 60 name tokens").0;
    assert!(denied.contains("allowed 0") && denied.contains("reservation null"), "{denied}");
    let settled = client.send(&format!("RK.SETTLE {id} 10")).0;
    assert!(settled.contains("remaining 90"), "{settled}");
    let again = client.send(&format!("RK.SETTLE {id} 10")).0;
    assert!(again.starts_with("GONE there is no such reservation"), "{again}");
    let overdrawn = client.send("RK.RESERVE ann 100/hour COST 500 NAME tokens OVERDRAFT").0;
    assert!(overdrawn.contains("allowed 1") && overdrawn.contains("remaining 0"), "{overdrawn}");
    let elsewhere = client.send(&format!("RK.SETTLE degraded-{id} 10")).0;
    assert!(elsewhere.contains("only the server that made it can settle it"), "{elsewhere}");
}

#[test]
fn a_reservation_expires() {
    let mut client = TestClient::new(&[]);
    let reserved = client.send("RK.RESERVE ann 100/hour COST 60 VALID 5000").0;
    let id = id_of(&reserved);
    client.clock.advance(Duration::from_secs(5));
    assert!(client.send(&format!("RK.SETTLE {id} 10")).0.starts_with("GONE"));
}

#[test]
fn permits_are_held_until_they_are_released() {
    let mut client = TestClient::new(&[]);
    let held = client.send("RK.ACQUIRE acme 1 NAME exports").0;
    let id = id_of(&held);
    assert!(client.send("RK.ACQUIRE acme 1 NAME exports VALID 1000").0.contains("allowed 0"));
    assert!(client.send("RK.ACQUIRE acme 1 NAME imports").0.contains("allowed 1"));
    assert_eq!(client.send(&format!("RK.RELEASE {id}")).0, "OK");
    assert!(client.send(&format!("RK.RELEASE {id}")).0.starts_with("GONE there is no such permit"));
    assert!(client.send("RK.ACQUIRE acme 1 NAME exports").0.contains("allowed 1"));
}

#[test]
fn invalid_reservations_and_permits_get_errors_that_say_what_would_work() {
    let mut client = TestClient::new(&[]);
    for (command, error) in [
        ("RK.RESERVE k 5/fortnight", "unknown period"),
        ("RK.RESERVE k 5/s VALID 0", "1 to 3600000 milliseconds"),
        ("RK.RESERVE k 5/s VALID 3600001", "1 to 3600000 milliseconds"),
        ("RK.RESERVE k 5/s VALID", "'VALID' needs a value"),
        ("RK.RESERVE k 5/s TTL 5", "use ALGORITHM, COST, NAME, OVERDRAFT or VALID"),
        ("RK.RESERVE k 5/s COST 0", "cost"),
        ("RK.SETTLE 17 5", "the one that RK.RESERVE or RK.ACQUIRE returned"),
        ("RK.SETTLE 0123456789abcdef0123456789abcdef -5", "the cost is negative"),
        ("RK.ACQUIRE k 0", "at least 1"),
        ("RK.ACQUIRE k 5 MAX 5", "use NAME or VALID"),
        ("RK.ACQUIRE k 5 NAME a,b", "a name is letters"),
        ("RK.RELEASE x", "this is not an id"),
    ] {
        let reply = client.send(command).0;
        assert!(reply.starts_with("ERR") && reply.contains(error), "{command}: {reply}");
    }
}
