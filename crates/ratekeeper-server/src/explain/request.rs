//! The request that is asked about.

use std::cell::OnceCell;

use ratekeeper::policy::RequestAttributes;
use ratekeeper::policy::attributes::{Target, request_host};
use ratekeeper::{Clock, Policy, SystemClock};

use super::Explain;
use crate::failure::Failure;

/// The values of custom identities, by name.
type Custom<'a> = dyn Fn(&str) -> Option<Vec<u8>> + 'a;

pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
    pub(super) host: Option<&'a str>,
    options: &'a Explain,
    custom: Box<Custom<'a>>,
    now: OnceCell<u64>,
}

impl<'a> Asked<'a> {
    /// Fails if it is not clear which host the request is for: a server would refuse it.
    pub(super) fn new(options: &'a Explain) -> Result<Self, Failure> {
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
            custom: Box::new(custom),
            now: OnceCell::new(),
        })
    }

    pub(super) fn request(&self) -> RequestAttributes<'_> {
        let now = self.now.get_or_init(|| SystemClock.now().get() / 1_000_000);
        RequestAttributes {
            host: self.host,
            query: self.query,
            headers: &self.options.headers,
            peer: self.options.peer,
            custom: &*self.custom,
            unix_secs: *now,
            ..RequestAttributes::new(self.method, self.path)
        }
    }

    /// An identity that is not the program's to give would be passed over in silence.
    pub(super) fn check_identities(&self, policy: &Policy) -> Result<(), Failure> {
        let is_custom = |name: &str| policy.custom_identities().any(|known| known == name);
        let mut given = self.options.identities.iter().map(|(name, _)| name.as_str());
        match given.find(|name| !is_custom(name)) {
            None => Ok(()),
            Some(name) => {
                let why = format!(
                    "the policy has no custom identity \"{name}\"; others are found in the request itself, as with --header"
                );
                Err(Failure::input(why))
            }
        }
    }
}

/// Parses a header.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is \"NAME: VALUE\"")?;
    let name = name.trim().to_ascii_lowercase();
    match name.is_empty() {
        true => Err("the header has no name".into()),
        false => Ok((name, value.trim().to_string())),
    }
}

/// Parses the value of an identity.
pub(super) fn identity(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("an identity is NAME=VALUE")?;
    Ok((name.to_string(), value.to_string()))
}
