//! What has been found out about one request, each thing once and only when it is needed.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::io::Write as _;
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::attributes::query::Parameters;
use crate::attributes::{HostError, canonical_host};
use crate::identity::{Identity, IdentityValue, Key, MissingReason, Source, WhenMissing};
use crate::path;
use crate::policy::Policy;
use crate::request::RequestAttributes;
#[cfg(feature = "jwt")]
use crate::token::TokenClaims;

/// About one request (`'r`) to one policy (`'p`).
pub(crate) struct RequestContext<'p: 'r, 'r> {
    pub(crate) request: &'r RequestAttributes<'r>,
    pub(crate) policy: &'p Policy,
    paths: SmallVec<[Cow<'r, str>; 1]>,
    host: OnceCell<Result<Cow<'r, str>, HostError>>,
    client: OnceCell<Option<IpAddr>>,
    parameters: OnceCell<Parameters<'r>>,
    identities: SmallVec<[OnceCell<IdentityValue<'r>>; 6]>,
    tier: OnceCell<usize>,
    #[cfg(feature = "jwt")]
    token: OnceCell<TokenClaims>,
}

/// A limit is per an identity that is missing, and must not pass without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingIdentity<'p> {
    /// The identity.
    pub identity: &'p str,
    /// Why it is not there.
    pub why: MissingReason,
}

impl<'p: 'r, 'r> RequestContext<'p, 'r> {
    pub(crate) fn new(policy: &'p Policy, request: &'r RequestAttributes<'r>) -> Self {
        Self {
            request,
            policy,
            paths: path::readings(request.path),
            host: OnceCell::new(),
            client: OnceCell::new(),
            parameters: OnceCell::new(),
            identities: policy.identities.iter().map(|_| OnceCell::new()).collect(),
            tier: OnceCell::new(),
            #[cfg(feature = "jwt")]
            token: OnceCell::new(),
        }
    }

    /// The path as limits see it.
    pub(crate) fn path(&self) -> &str {
        &self.paths[0]
    }

    /// The same, and all that servers may take it for.
    pub(crate) fn paths(&self) -> &[Cow<'r, str>] {
        &self.paths
    }

    /// The host that the request is for, in canonical form; empty if there is none.
    pub(crate) fn host(&self) -> Result<&str, HostError> {
        let host = self.host.get_or_init(|| match self.request.host {
            None | Some("") => Ok("".into()),
            Some(host) => canonical_host(host),
        });
        host.as_deref().map_err(|error| *error)
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
            // Most peers are nobody's proxy, and then there is no header to look for.
            if !peer.is_some_and(|peer| rule.is_trusted(peer)) {
                return peer;
            }
            let lines = self.request.headers.all(rule.header());
            rule.find(peer, lines.iter().copied())
        })
    }

    /// The address or network that it is counted under.
    pub(crate) fn client_key(&self) -> Option<Vec<u8>> {
        let network = self.policy.client_ip.key(self.client()?);
        let mut key = Vec::with_capacity(48);
        let is_whole = network.prefix_len() == network.max_prefix_len();
        let _ = match is_whole {
            true => write!(key, "{}", network.addr()),
            false => write!(key, "{network}"),
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

    /// The value of an identity.
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

    /// The caller's tier, if there are any.
    pub(crate) fn tier(&self) -> Option<usize> {
        let tiers = self.policy.tiers.as_ref()?;
        Some(*self.tier.get_or_init(|| {
            let value = self.value(tiers.of);
            let known = value.as_ref().ok().and_then(|value| tiers.by_value.get(value.as_ref()));
            known.copied().unwrap_or(tiers.default)
        }))
    }

    /// What a limit per these identities counts this request under. Without one of them, a request
    /// still has a key.
    pub(crate) fn key(&self, per: &[usize]) -> Key {
        if per.is_empty() {
            return Key::of_all();
        }
        let mut key = Key::default();
        per.iter().for_each(|id| self.add_part(&mut key, *id));
        key
    }

    /// Of these identities, the first that must not be missing but is.
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
                key.instead(&self.identity(*found).name);
            }
        }
        match self.value(id) {
            Ok(value) => key.value(value),
            Err(_) => self.stand_in(key, identity.missing),
        }
    }

    /// Whatever is missing, there is a key: the client's address, or that of all anonymous ones.
    fn stand_in(&self, key: &mut Key, missing: WhenMissing) {
        let client = if missing == WhenMissing::Ip { self.client_key() } else { None };
        match client {
            Some(client) => {
                key.instead("ip");
                key.value(&client);
            }
            None => key.instead(""),
        }
    }
}
