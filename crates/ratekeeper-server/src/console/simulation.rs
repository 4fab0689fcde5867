//! A limit against traffic, simulated in virtual time for the console.

use std::sync::Arc;
use std::time::Duration;

use ratekeeper_core::{Algorithm, Limit, LimitError, Rate, RateError, parse_duration};
use ratekeeper_lab::{
    AllAlgorithms, Arrival, PATTERNS, Pattern, SimulateError, Traffic, compare, span_text,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// The most requests of a simulation.
const REQUESTS_MAX: usize = 50_000;
const KEYS_MAX: u32 = 1_000;
/// Of the default duration.
const PERIODS: u32 = 10;

/// Simulates one limit at a time: the server has better things to do.
pub(super) struct Simulator(Arc<Semaphore>);

impl Default for Simulator {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// What to simulate, as the options of `ratekeeper simulate`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulationRequest {
    rate: String,
    #[serde(default)]
    algorithm: Option<String>,
    #[serde(default)]
    traffic: Option<String>,
    #[serde(default)]
    offered: Option<String>,
    #[serde(default)]
    duration: Option<String>,
    #[serde(default)]
    keys: Option<u32>,
    #[serde(default)]
    seed: Option<u64>,
}

/// Why a simulation is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidSimulation {
    #[error("expected JSON such as {{\"rate\": \"100/minute\", \"traffic\": \"burst\"}}: {0}")]
    Json(#[from] serde_json::Error),
    #[error("invalid {field}: {}", .source.message())]
    Rate { field: &'static str, source: RateError },
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error("unknown traffic \"{0}\"; use {1}")]
    Traffic(String, String),
    #[error(
        "boundary traffic offers the limit itself; leave out \"offered\", or use other traffic"
    )]
    OfferedAtBoundary,
    #[error("\"offered\" has no burst; use burst traffic")]
    OfferedBurst,
    #[error("use 1 to {KEYS_MAX} keys")]
    Keys,
    #[error(
        "more than {REQUESTS_MAX} requests; use a shorter duration, fewer keys or a lower rate"
    )]
    TooMany,
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    #[error("another simulation is running; try again")]
    Busy,
}

impl Simulator {
    /// Simulates what JSON says, on a thread that serves nothing else.
    pub(super) async fn run(&self, body: &[u8]) -> Result<Value, InvalidSimulation> {
        let request: SimulationRequest = serde_json::from_slice(body)?;
        let permit = Arc::clone(&self.0).try_acquire_owned();
        let permit = permit.map_err(|_| InvalidSimulation::Busy)?;
        let simulating = tokio::task::spawn_blocking(move || {
            let result = request.simulate();
            drop(permit);
            result
        });
        simulating.await.unwrap_or(Err(InvalidSimulation::Busy))
    }
}

impl SimulationRequest {
    fn simulate(&self) -> Result<Value, InvalidSimulation> {
        let rate = parse_rate("rate", &self.rate)?;
        let AllAlgorithms { limits, notes } = self.limits(rate)?;
        let pattern = self.pattern()?;
        let traffic = self.traffic(pattern, rate)?;
        let arrivals: Vec<Arrival> = traffic.arrivals().take(REQUESTS_MAX + 1).collect();
        if arrivals.len() > REQUESTS_MAX {
            return Err(InvalidSimulation::TooMany);
        }
        let offered = arrivals.len();
        // One more key is that of a spike.
        let keys_max = 2 * KEYS_MAX as usize;
        let arrivals = arrivals.into_iter().map(Ok);
        let report = compare(&limits, arrivals, Some(traffic.span()), keys_max)?;
        let limit = match &*limits {
            [limit] => limit.to_string(),
            _ => format!("{rate} with every algorithm"),
        };
        let span = span_text(report.span_us());
        let title = format!("{limit}: {} traffic, {offered} requests in {span}", pattern.name());
        let document = report.to_document(&title);
        let document = notes.into_iter().fold(document, |document, note| document.note(note));
        Ok(json!({ "report": document }))
    }

    fn limits(&self, rate: Rate) -> Result<AllAlgorithms, LimitError> {
        let algorithm = match self.algorithm.as_deref() {
            Some("all") => return AllAlgorithms::new(rate),
            Some(name) => name.parse()?,
            None => Algorithm::default_for(&rate),
        };
        let limits = vec![Limit::new(rate, algorithm)?];
        Ok(AllAlgorithms { limits, notes: Vec::new() })
    }

    fn pattern(&self) -> Result<Pattern, InvalidSimulation> {
        let Some(name) = &self.traffic else { return Ok(Pattern::Boundary) };
        let known = PATTERNS.iter().find(|pattern| pattern.name() == name);
        known.copied().ok_or_else(|| {
            let names: Vec<_> = PATTERNS.iter().map(|pattern| pattern.name()).collect();
            InvalidSimulation::Traffic(name.clone(), names.join(", "))
        })
    }

    fn traffic(&self, pattern: Pattern, rate: Rate) -> Result<Traffic, InvalidSimulation> {
        let keys = self.keys.unwrap_or(1);
        if !(1..=KEYS_MAX).contains(&keys) {
            return Err(InvalidSimulation::Keys);
        }
        let traffic = Traffic::new(pattern, rate, self.duration(rate)?);
        let traffic = traffic.with_keys(keys).with_seed(self.seed.unwrap_or(1));
        match self.offered.as_deref().map(|text| parse_rate("offered", text)).transpose()? {
            None => Ok(traffic),
            Some(_) if pattern == Pattern::Boundary => Err(InvalidSimulation::OfferedAtBoundary),
            Some(offered) if offered.burst().is_some() => Err(InvalidSimulation::OfferedBurst),
            Some(offered) => Ok(traffic.with_rate(offered)),
        }
    }

    fn duration(&self, rate: Rate) -> Result<Duration, InvalidSimulation> {
        let Some(text) = &self.duration else { return Ok(rate.period() * PERIODS) };
        parse_duration(text).map_err(|source| InvalidSimulation::Rate { field: "duration", source })
    }
}

fn parse_rate(field: &'static str, text: &str) -> Result<Rate, InvalidSimulation> {
    text.parse().map_err(|source| InvalidSimulation::Rate { field, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulate(body: &str) -> Result<Value, InvalidSimulation> {
        serde_json::from_str::<SimulationRequest>(body)?.simulate()
    }

    #[test]
    fn a_simulation_is_what_the_command_prints() {
        let result = simulate(r#"{"rate":"10/s","traffic":"boundary","algorithm":"all"}"#).unwrap();
        let title = result["report"]["title"].as_str().unwrap();
        assert_eq!(title, "10/s with every algorithm: boundary traffic, 100 requests in 10s");
        assert!(result["report"]["sections"][1]["blocks"][0]["chart"]["series"].is_array());
    }

    #[test]
    fn a_simulation_is_bounded_and_an_invalid_one_says_what_is_valid() {
        let error = |body| simulate(body).unwrap_err().to_string();
        let rate = r#"{"rate":"1000000/s","traffic":"steady"}"#;
        assert!(error(rate).contains("shorter duration"), "{}", error(rate));
        let endless = r#"{"rate":"1/ms","duration":"1 year"}"#;
        assert!(error(endless).contains("shorter duration"), "{}", error(endless));
        assert!(error(r#"{"rate":"10/s","keys":5000}"#).contains("1 to 1000"));
        assert!(error(r#"{"rate":"10/s","traffic":"flood"}"#).contains("use steady, burst"));
        assert!(error(r#"{"rate":"10/fortnight"}"#).contains("invalid rate"));
        assert!(error(r#"{"rate":"10/s","offered":"9/s"}"#).contains("other traffic"));
        assert!(error(r#"{"rat":"10/s"}"#).contains("unknown field"));
    }

    #[tokio::test]
    async fn one_simulation_runs_at_a_time() {
        let simulator = Simulator::default();
        let _permit = simulator.0.try_acquire().unwrap();
        let result = simulator.run(br#"{"rate":"10/s"}"#).await;
        assert!(matches!(result, Err(InvalidSimulation::Busy)));
    }
}
