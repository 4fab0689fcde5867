use ratekeeper_lab::service::{PROTECTIONS, scenarios, simulate};

#[test]
fn explore() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let prot = std::env::var("PROT").unwrap_or_default();
    let trace = std::env::var("TRACE").is_ok();
    for scenario in scenarios() {
        if !scenario.name().contains(&only) {
            continue;
        }
        for protection in PROTECTIONS {
            if !protection.name().contains(&prot) {
                continue;
            }
            for seed in 1..=std::env::var("SEEDS").map_or(1, |s| s.parse().unwrap()) {
                let m = simulate(&scenario, *protection, seed);
                println!(
                    "{:28} {:18} good {:.3} over {:.3} worst10 {:.3} p99x {:5.2} conv {:?} rec {:?} queue {} rej {} to {}",
                    scenario.name(),
                    protection.name(),
                    m.goodput(),
                    m.overload_goodput(),
                    m.worst_goodput(),
                    m.p99_over_unloaded(),
                    m.converged_after(),
                    m.recovered_after(),
                    m.queue_max(),
                    m.rejected(),
                    m.timed_out()
                );
                if trace {
                    let l: Vec<_> = m
                        .limits()
                        .zip(m.successes())
                        .map(|(l, s)| format!("{l}/{s}"))
                        .take(120)
                        .collect();
                    println!("{}", l.join(" "));
                }
            }
        }
    }
}
