//! `ratekeeper explain`: what a policy makes of one request, and why.

mod json;
mod request;
mod state;
mod text;

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use ratekeeper::PolicyLimiter;
use ratekeeper::policy::Explanation;

use crate::choices::Format;
use crate::failure::Failure;
use crate::policy_input;
use request::Asked;
use state::States;

const EXAMPLES: &str = "\
Examples:
  Which limits apply to a checkout, and what do they count it under?
    ratekeeper explain policy.yaml --method POST --path /checkout --header 'x-api-key: k-123'

  How much has this client left, in the policy's Redis?
    ratekeeper explain policy.yaml --path /search --peer 203.0.113.9 --state

Exit codes: 0 done, 2 the policy or the request cannot be used.";

/// Explain what a policy makes of a request: which limits apply, and why the others do not
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    /// The policy file; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The request's method
    #[arg(long, default_value = "GET")]
    method: String,

    /// Its path, as it would be sent, with or without a query
    #[arg(long, default_value = "/")]
    path: String,

    /// The host that it is for [default: that of a host header]
    #[arg(long)]
    host: Option<String>,

    /// A header; can be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = request::header)]
    headers: Vec<(String, String)>,

    /// The address at the other end of the connection: the client, or the nearest proxy
    #[arg(long, value_name = "IP")]
    peer: Option<IpAddr>,

    /// The value of an identity that a program would give (custom)
    #[arg(long = "identity", value_name = "NAME=VALUE", value_parser = request::identity)]
    identities: Vec<(String, String)>,

    /// Ask the policy's store what is left at present; nothing is charged
    #[arg(long)]
    state: bool,

    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Explain {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let policy = policy_input::read(&self.file).map_err(Failure::input)?;
        let asked = Asked::new(&self)?;
        asked.check_identities(&policy)?;
        if !self.state {
            let explained = policy.explain(&asked.request());
            return self.print(&asked, &explained, &States::default());
        }
        let gate = PolicyLimiter::new(policy).map_err(Failure::input)?;
        let live = gate.policy().active();
        let request = asked.request();
        let explained = live.policy().explain(&request);
        let states = States::ask(&gate, &explained)?;
        self.print(&asked, &explained, &states)
    }

    fn print(
        &self,
        asked: &Asked<'_>,
        explained: &Explanation<'_>,
        states: &States,
    ) -> Result<(), Failure> {
        let told = match self.format {
            Format::Text => text::show(asked, explained, states),
            Format::Json => format!("{:#}\n", json::show(asked, explained, states)),
        };
        io::stdout().write_all(told.as_bytes()).map_err(Failure::output)
    }
}
