//! The shedder with a clock, between threads.

use std::time::Duration;

use ratekeeper::{Bulkhead, Class, ManualClock, Micros, Overload, Shedder, ShedderConfig};

use crate::support::{MS, SEC, VirtualClock};

fn at_start() -> ManualClock {
    ManualClock::at(Micros::new(1_800_000_000_000_000))
}

fn overload(shedder: &Shedder<ManualClock>, clock: &ManualClock, level: f64) {
    while shedder.level() < level {
        shedder.observe(Overload::QueueTime(100 * MS));
        clock.advance(100 * MS);
    }
}

#[test]
fn it_sheds_under_overload_and_recovers() {
    let clock = at_start();
    let shedder = Shedder::with_clock(ShedderConfig::DEFAULT, clock.clone()).unwrap();
    assert!(shedder.admit(Class::SHEDDABLE, "ann").is_ok());
    overload(&shedder, &clock, 1.0);
    let shed = shedder.admit(Class::SHEDDABLE, "ann").unwrap_err();
    assert_eq!(shed.class, Class::SHEDDABLE);
    assert!(shed.retry_after >= SEC, "{shed}");
    assert!(shedder.admit_anonymous(Class::SHEDDABLE).is_err());
    assert!(shedder.admit(Class::CRITICAL, "ann").is_ok());
    let stats = shedder.stats();
    let counts: Vec<_> = stats.iter().map(|class| (class.admitted, class.shed)).collect();
    assert_eq!(counts, [(0, 0), (1, 0), (0, 0), (1, 2)]);
    assert_eq!(stats[3].shed_share, 1.0);

    clock.advance(Duration::from_secs(60));
    assert!(shedder.admit(Class::SHEDDABLE, "ann").is_ok());
    assert_eq!(shedder.level(), 0.0);
}

#[test]
fn requests_of_unknown_users_are_shed_by_the_share() {
    let clock = at_start();
    let shedder = Shedder::with_clock(ShedderConfig::DEFAULT, clock.clone()).unwrap();
    overload(&shedder, &clock, 0.5);
    let _ = shedder.admit_anonymous(Class::SHEDDABLE); // ends the last interval
    let share = shedder.stats()[3].shed_share;
    let shed = (0..10_000).filter(|_| shedder.admit_anonymous(Class::SHEDDABLE).is_err()).count();
    assert!((shed as f64 / 10_000.0 - share).abs() < 0.02, "{shed} of 10000, not {share}");
}

#[test]
fn threads_share_one_level() {
    let clock = at_start();
    let shedder = Shedder::with_clock(ShedderConfig::DEFAULT, clock.clone()).unwrap();
    overload(&shedder, &clock, 1.0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let shedder = shedder.clone();
            scope.spawn(move || {
                for user in 0..1_000u32 {
                    assert!(shedder.admit(Class::SHEDDABLE, &user.to_le_bytes()).is_err());
                    assert!(shedder.admit(Class::CRITICAL_PLUS, &user.to_le_bytes()).is_ok());
                }
            });
        }
    });
    assert_eq!(shedder.stats()[3].shed, 4_000);
}

#[tokio::test(start_paused = true)]
async fn a_bulkhead_without_a_queue_reports_its_utilization() {
    let shedder = Shedder::with_clock(ShedderConfig::DEFAULT, VirtualClock::start()).unwrap();
    let bulkhead = Bulkhead::new(10).unwrap().with_shedder(&shedder);
    let seven: Vec<_> = (0..7).map(|_| bulkhead.try_acquire().unwrap()).collect();
    let attempt = async || {
        for _ in 0..50 {
            let _ = bulkhead.try_acquire();
            tokio::time::sleep(20 * MS).await;
        }
    };
    attempt().await;
    assert_eq!(shedder.level(), 0.0, "80% are in use");
    let others: Vec<_> = (0..3).map(|_| bulkhead.try_acquire().unwrap()).collect();
    attempt().await;
    assert!(shedder.level() > 0.0);
    drop((seven, others));
}
