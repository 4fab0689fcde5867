//! Derived values of one request, each computed once and only when needed.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use smallvec::SmallVec;

use crate::attributes::query::Parameters;
use crate::attributes::{AttributeValues, HostError, canonical_host};
use crate::identity::{Identity, IdentityValue, Key, MissingReason, Source, WhenMissing};
use crate::json_fields::JsonPath;
use crate::path;
use crate::policy::Policy;
use crate::request::RequestAttributes;
#[cfg(feature = "jwt")]
use crate::token::TokenClaims;

/// Derived values of one request (`'r`) under one policy (`'p`).
pub(crate) struct RequestContext<'p: 'r, 'r> {
    pub(crate) request: &'r RequestAttributes<'r>,
    pub(crate) policy: &'p Policy,
    paths: OnceCell<SmallVec<[Cow<'r, str>; 1]>>,
    host: OnceCell<Result<Cow<'r, str>, HostError>>,
    client: OnceCell<Option<IpAddr>>,
    parameters: OnceCell<Parameters<'r>>,
    identities: SmallVec<[OnceCell<IdentityValue<'r>>; 6]>,
    tier: OnceCell<usize>,
    has_read_json: Cell<bool>,
    #[cfg(feature = "jwt")]
    token: OnceCell<TokenClaims>,
}

/// Appends an address as `Display` writes it, which takes several times as long.
fn write_ipv4(addr: Ipv4Addr, key: &mut Vec<u8>) {
    for (i, octet) in addr.octets().into_iter().enumerate() {
        if i > 0 {
            key.push(b'.');
        }
        if octet >= 100 {
            key.push(b'0' + octet / 100);
        }
        if octet >= 10 {
            key.push(b'0' + octet / 10 % 10);
        }
        key.push(b'0' + octet % 10);
    }
}

/// An identity that a limit requires and the request does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingIdentity<'p> {
    /// The name of the identity.
    pub identity: &'p str,
    /// Why it is missing.
    pub why: MissingReason,
}

impl<'p: 'r, 'r> RequestContext<'p, 'r> {
    #[inline]
    pub(crate) fn new(policy: &'p Policy, request: &'r RequestAttributes<'r>) -> Self {
        let mut context = Self {
            request,
            policy,
            paths: OnceCell::new(),
            host: OnceCell::new(),
            client: OnceCell::new(),
            parameters: OnceCell::new(),
            identities: SmallVec::new(),
            tier: OnceCell::new(),
            has_read_json: Cell::new(false),
            #[cfg(feature = "jwt")]
            token: OnceCell::new(),
        };
        context.identities.resize_with(policy.identities.len(), OnceCell::new);
        context
    }

    /// Returns the normalized path.
    pub(crate) fn path(&self) -> &str {
        &self.paths()[0]
    }

    /// Returns all readings of the path, the normalized one first.
    pub(crate) fn paths(&self) -> &[Cow<'r, str>] {
        self.paths.get_or_init(|| path::readings(self.request.path))
    }

    /// Returns the host in canonical form; empty if the request has none.
    pub(crate) fn host(&self) -> Result<&str, HostError> {
        let host = self.host.get_or_init(|| match self.request.host {
            None | Some("") => Ok("".into()),
            Some(host) => canonical_host(host),
        });
        host.as_deref().map_err(|error| *error)
    }

    /// Returns the host as a key, with the port if it is known; `None` if the request has no valid host.
    pub(crate) fn host_key(&self) -> Option<Cow<'r, [u8]>> {
        let (host, port) = (self.host().ok().filter(|host| !host.is_empty())?, self.request.port);
        let is_canonical = |sent: &&str| match (sent.strip_prefix(host), port) {
            (Some(rest), None) => rest.is_empty(),
            (Some(rest), Some(port)) => {
                let digits = rest.strip_prefix(':').filter(|digits| !digits.starts_with('0'));
                digits.is_some_and(|digits| digits.parse() == Ok(port))
            }
            (None, _) => false,
        };
        if let Some(sent) = self.request.host.filter(is_canonical) {
            return Some(sent.as_bytes().into());
        }
        Some(Cow::Owned(match port {
            None => host.as_bytes().to_vec(),
            Some(port) => format!("{host}:{port}").into_bytes(),
        }))
    }

    /// The parameters of the query.
    pub(crate) fn parameters(&self) -> &Parameters<'r> {
        self.parameters.get_or_init(|| Parameters::parse(self.request.query))
    }

    /// The address that the request really comes from.
    pub(crate) fn client(&self) -> Option<IpAddr> {
        *self.client.get_or_init(|| {
            let rule = &self.policy.client_ip;
            let peer = self.request.peer.map(|peer| peer.to_canonical());
            // Most peers are not trusted proxies; the header need not be read then.
            if !peer.is_some_and(|peer| rule.is_trusted(peer)) {
                return peer;
            }
            let lines = self.request.headers.all(rule.header());
            rule.find(peer, lines.iter().copied())
        })
    }

    /// Returns whether anything has depended on the client's address so far.
    pub(crate) fn has_read_client(&self) -> bool {
        self.client.get().is_some()
    }

    /// Returns the values of a field of the body. If the body is not known, any value is possible.
    pub(crate) fn json(&self, path: &JsonPath) -> AttributeValues<'r> {
        self.has_read_json.set(true);
        self.request.json.map_or_else(AttributeValues::unknown, |fields| fields.values(path))
    }

    /// Returns whether anything has depended on the body so far.
    pub(crate) fn has_read_json(&self) -> bool {
        self.has_read_json.get()
    }

    /// Returns the client's address, or its network, as a key.
    pub(crate) fn client_key(&self) -> Option<Vec<u8>> {
        let network = self.policy.client_ip.key(self.client()?);
        let mut key = Vec::with_capacity(48);
        let is_whole = network.prefix_len() == network.max_prefix_len();
        let _ = match network.addr() {
            IpAddr::V4(addr) if is_whole => {
                write_ipv4(addr, &mut key);
                Ok(())
            }
            addr if is_whole => write!(key, "{addr}"),
            _ => write!(key, "{network}"),
        };
        Some(key)
    }

    #[cfg(feature = "jwt")]
    pub(crate) fn claim(&self, path: &str) -> IdentityValue<'r> {
        let token = self.token.get_or_init(|| self.policy.tokens.find(self.request));
        token.claim(path)
    }

    #[cfg(not(feature = "jwt"))]
    pub(crate) fn claim(&self, _: &str) -> IdentityValue<'r> {
        Err(MissingReason::NoClaim)
    }

    fn identity(&self, id: usize) -> &'p Identity {
        &self.policy.identities[id]
    }

    /// Returns the value of an identity.
    pub(crate) fn value(&self, id: usize) -> &IdentityValue<'r> {
        self.identities[id].get_or_init(|| {
            let identity = self.identity(id);
            match &identity.source {
                Source::Custom => {
                    let given = (self.request.custom)(&identity.name);
                    given
                        .filter(|value| !value.is_empty())
                        .map(Cow::from)
                        .ok_or(MissingReason::NotGiven)
                }
                Source::FirstOf(ids) => {
                    let found = ids.iter().find_map(|id| self.value(*id).as_ref().ok());
                    found.cloned().ok_or(MissingReason::NoneOf)
                }
                source => source.find(self),
            }
        })
    }

    /// Returns the client's tier, if the policy has tiers.
    pub(crate) fn tier(&self) -> Option<usize> {
        let tiers = self.policy.tiers.as_ref()?;
        Some(*self.tier.get_or_init(|| {
            let value = self.value(tiers.of);
            let known = value.as_ref().ok().and_then(|value| tiers.by_value.get(value.as_ref()));
            known.copied().unwrap_or(tiers.default)
        }))
    }

    /// Returns the key of this request for a limit per these identities. A request without one of them
    /// gets a fallback key.
    pub(crate) fn key(&self, per: &[usize]) -> Key {
        if per.is_empty() {
            return Key::of_all();
        }
        let mut key = Key::default();
        per.iter().for_each(|id| self.add_part(&mut key, *id));
        key
    }

    /// Returns an error for the first of these identities that is required and missing.
    pub(crate) fn required(&self, per: &[usize]) -> Result<(), MissingIdentity<'p>> {
        for id in per {
            let identity = self.identity(*id);
            if identity.missing == WhenMissing::Deny
                && let Err(why) = self.value(*id)
            {
                return Err(MissingIdentity { identity: &identity.name, why: why.clone() });
            }
        }
        Ok(())
    }

    fn add_part(&self, key: &mut Key, id: usize) {
        let identity = self.identity(id);
        key.begin(&identity.name);
        if let Source::FirstOf(ids) = &identity.source {
            let found = ids.iter().find(|id| self.value(**id).is_ok());
            if let Some(found) = found {
                key.fallback(&self.identity(*found).name);
            }
        }
        match self.value(id) {
            Ok(value) => key.value(value),
            Err(_) => self.add_fallback(key, identity.missing),
        }
    }

    /// Appends the fallback for a missing identity: the client's address, or one key for all anonymous
    /// clients.
    fn add_fallback(&self, key: &mut Key, missing: WhenMissing) {
        let client = if missing == WhenMissing::Ip { self.client_key() } else { None };
        match client {
            Some(client) => {
                key.fallback("ip");
                key.value(&client);
            }
            None => key.fallback(""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_it_is_displayed() {
        for octet in 0..=255u8 {
            let addr = Ipv4Addr::new(octet, 255 - octet, 7, octet);
            let mut key = Vec::new();
            write_ipv4(addr, &mut key);
            assert_eq!(String::from_utf8(key).unwrap(), addr.to_string());
        }
    }
}
