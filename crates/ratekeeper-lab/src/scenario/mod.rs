//! Scenarios: clients, a limiter with several nodes, its store and a service, in virtual time.
//!
//! A scenario is a YAML file. It is run once, or once for each of its variants, which are then compared. The same
//! file and seed have the same result.
//!
//! ```
//! use ratekeeper_lab::scenario::Scenario;
//!
//! let text = "
//! duration: 10s
//! clients: [{ rate: 20/s }]
//! limiter: { rate: 10/s burst 10, nodes: 4 }
//! variants:
//!   - { name: one shared limit }
//!   - { name: four local limits, limiter: { mode: local } }
//! ";
//! let results = Scenario::parse("scenario.yaml", text, &|_| Ok(Vec::new()))?.run();
//! let admitted = |n: usize| results.runs()[n].measures().admitted();
//! assert!(admitted(0) <= 110);
//! assert!(admitted(1) > 190, "each node allows 10/s");
//! # Ok::<(), ratekeeper_policy::PolicyErrors>(())
//! ```

mod format;
mod limiter;
mod measures;
mod results;
mod run;
mod setup;
mod sources;

use ratekeeper_policy::{PolicyErrors, yaml};

use crate::arrival::Arrival;
use format::Reader;
pub use measures::Measures;
pub use results::{ScenarioResults, VariantRun};
use run::Simulation;
use setup::Setup;

/// A scenario that can be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    name: String,
    duration_us: u64,
    seed: u64,
    shows_ends: bool,
    setups: Vec<Setup>,
}

impl Scenario {
    /// Reads a scenario file. `traces` reads the trace files that it names.
    ///
    /// # Errors
    /// If the file is invalid: all problems, with their lines and columns.
    pub fn parse(
        file: &str,
        text: &str,
        traces: &dyn Fn(&str) -> Result<Vec<Arrival>, String>,
    ) -> Result<Self, PolicyErrors> {
        let (root, mut problems) = yaml::read(file, text);
        let Some(root) = root else {
            problems.report(yaml::Span { line: 1, column: 1, width: 1 }, "there is no scenario");
            return Err(problems.into_errors());
        };
        let mut reader = Reader { problems: &mut problems, traces };
        let head = reader.head(&root);
        let setups = reader.setups(&root, &head);
        if !problems.is_empty() {
            return Err(problems.into_errors());
        }
        let has_service = setups.iter().any(|setup| setup.service.is_some());
        Ok(Self {
            name: head.name,
            duration_us: head.duration_us,
            seed: head.seed,
            shows_ends: head.shows_ends.unwrap_or(has_service),
            setups,
        })
    }

    /// Uses another seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Runs each variant.
    #[must_use]
    pub fn run(&self) -> ScenarioResults {
        let run = |setup: &Setup| {
            let measures = Simulation::new(setup, self.duration_us, self.seed).run();
            VariantRun::new(setup.name.clone(), measures)
        };
        let runs = self.setups.iter().map(run).collect();
        ScenarioResults::new(self.name.clone(), self.duration_us, self.shows_ends, runs)
    }
}
