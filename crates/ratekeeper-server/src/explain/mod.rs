//! `ratekeeper explain`: prints which limits of a policy apply to a request, and why.

mod described;
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
use tokio::runtime::Builder;

use crate::choices::Format;
use crate::failure::Failure;
use crate::policy_input;
use crate::style;
pub(crate) use described::explain_described;
use request::ExplainedRequest;
use state::LimitStates;

const EXAMPLES: &str = "\
Examples:
  Print which limits apply to a checkout, and with which keys:
    ratekeeper explain policy.yaml --method POST --path /checkout --header 'x-api-key: k-123'

  Print how much this client has left, from the policy's Redis:
    ratekeeper explain policy.yaml --path /search --peer 203.0.113.9 --state

Exit codes: 0 success, 2 the policy or the request is invalid.";

/// Explain which limits of a policy apply to a request, and why the others do not
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    /// The policy file; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Method of the request
    #[arg(long, default_value = "GET")]
    method: String,

    /// Path as sent, with or without a query
    #[arg(long, default_value = "/")]
    path: String,

    /// Host [default: that of a host header]
    #[arg(long)]
    host: Option<String>,

    /// Header; can be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = request::header)]
    headers: Vec<(String, String)>,

    /// JSON body, for policies with request_json
    #[arg(long, value_name = "JSON")]
    body: Option<String>,

    /// Address of the peer: the client, or the nearest proxy
    #[arg(long, value_name = "IP")]
    peer: Option<IpAddr>,

    /// Value of a custom identity, which an application would supply
    #[arg(long = "identity", value_name = "NAME=VALUE", value_parser = request::identity)]
    identities: Vec<(String, String)>,

    /// Print the current state of the limits from the policy's store; nothing is charged
    #[arg(long)]
    state: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl Explain {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let policy = policy_input::read(&self.file).map_err(Failure::input)?;
        let request = ExplainedRequest::new(&self, &policy)?;
        request.check_identities(&policy)?;
        if !self.state {
            let explanation = policy.explain(&request.attributes());
            return self.print(&request, &explanation, &LimitStates::default());
        }
        let limiter = PolicyLimiter::new(policy).map_err(Failure::input)?;
        let active = limiter.policy().active();
        let attributes = request.attributes();
        let explanation = active.policy().explain(&attributes);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::io)?;
        let states = runtime.block_on(LimitStates::read(&limiter, &explanation, state::TRIES));
        self.print(&request, &explanation, &states)
    }

    fn print(
        &self,
        request: &ExplainedRequest<'_>,
        explanation: &Explanation<'_>,
        states: &LimitStates,
    ) -> Result<(), Failure> {
        let written = match self.format {
            Format::Text => {
                let text = text::show(request, explanation, states);
                style::stdout().write_all(text.as_bytes())
            }
            Format::Json => {
                writeln!(
                    io::stdout(),
                    "{:#}",
                    json::show(&request.attributes(), explanation, states)
                )
            }
        };
        written.map_err(Failure::output)
    }
}
