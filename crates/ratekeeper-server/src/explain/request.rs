//! The request to explain, from the command line.

use std::cell::OnceCell;

use ratekeeper::policy::RequestAttributes;
use ratekeeper::policy::attributes::{Target, request_host};
use ratekeeper::policy::json_fields::JsonFields;
use ratekeeper::{Clock, Policy, SystemClock};

use super::Explain;
use crate::failure::Failure;

/// Returns the value of a custom identity by its name.
type Custom<'a> = dyn Fn(&str) -> Option<Vec<u8>> + 'a;

pub(super) struct ExplainedRequest<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
    pub(super) host: Option<&'a str>,
    options: &'a Explain,
    json: Option<JsonFields>,
    custom: Box<Custom<'a>>,
    now: OnceCell<u64>,
}

impl<'a> ExplainedRequest<'a> {
    /// Fails if the host of the request is ambiguous: a server would reject it.
    pub(super) fn new(options: &'a Explain, policy: &Policy) -> Result<Self, Failure> {
        let Target { authority, path, query } = Target::parse(&options.path);
        let named = options.headers.iter().filter(|(name, _)| name == "host");
        let lines = named.map(|(_, value)| value.as_bytes());
        let host = request_host(options.host.as_deref().or(authority), lines);
        let custom = |name: &str| {
            let given = options.identities.iter().find(|(known, _)| known == name);
            given.map(|(_, value)| value.clone().into_bytes())
        };
        Ok(Self {
            method: &options.method,
            path,
            query,
            host: host.map_err(Failure::input)?,
            options,
            json: options
                .body
                .as_ref()
                .and_then(|body| JsonFields::of(body.as_bytes(), policy.request_json())),
            custom: Box::new(custom),
            now: OnceCell::new(),
        })
    }

    pub(super) fn attributes(&self) -> RequestAttributes<'_> {
        let now = self.now.get_or_init(|| SystemClock.now().get() / 1_000_000);
        RequestAttributes {
            host: self.host,
            query: self.query,
            headers: &self.options.headers,
            json: self.json.as_ref(),
            peer: self.options.peer,
            custom: &*self.custom,
            unix_secs: *now,
            ..RequestAttributes::new(self.method, self.path)
        }
    }

    /// Fails if an identity was given that the policy does not take from the application: it would be
    /// ignored.
    pub(super) fn check_identities(&self, policy: &Policy) -> Result<(), Failure> {
        let is_custom = |name: &str| policy.custom_identities().any(|known| known == name);
        let mut given = self.options.identities.iter().map(|(name, _)| name.as_str());
        match given.find(|name| !is_custom(name)) {
            None => Ok(()),
            Some(name) => {
                let message = format!(
                    "the policy has no custom identity \"{name}\"; other identities come from the request, as with --header"
                );
                Err(Failure::input(message))
            }
        }
    }
}

/// Why the value of `--header` or `--identity` is rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum PairError {
    #[error("expected \"NAME: VALUE\"")]
    Header,
    #[error("the name of the header is missing; expected \"NAME: VALUE\"")]
    EmptyName,
    #[error("expected NAME=VALUE")]
    Identity,
}

/// Parses a header.
pub(super) fn header(text: &str) -> Result<(String, String), PairError> {
    let (name, value) = text.split_once(':').ok_or(PairError::Header)?;
    let name = name.trim().to_ascii_lowercase();
    match name.is_empty() {
        true => Err(PairError::EmptyName),
        false => Ok((name, value.trim().to_string())),
    }
}

/// Parses the value of an identity.
pub(super) fn identity(text: &str) -> Result<(String, String), PairError> {
    let (name, value) = text.split_once('=').ok_or(PairError::Identity)?;
    Ok((name.to_string(), value.to_string()))
}
