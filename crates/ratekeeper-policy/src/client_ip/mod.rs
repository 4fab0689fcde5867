//! Whose request it is, behind proxies.
//!
//! A header that names the client is worth what the one who wrote it is worth, and its left part is
//! written by the caller. So the list is read from the right, and only as far as trusted proxies
//! vouch for it.

mod entries;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

pub use ipnet::IpNet;
use ipnet::Ipv4Net;

/// As many entries of a header as are looked at.
const ENTRIES_MAX: usize = 64;

/// Finds the client among the proxies, and the network that it is counted under.
///
/// ```
/// # use ratekeeper_policy::client_ip::ClientIp;
/// let finder = ClientIp::new(vec!["10.0.0.0/8".parse()?]);
/// let peer = Some("10.0.0.1".parse()?);
/// let header = [b"6.6.6.6, 203.0.113.9".as_slice(), b"10.0.0.2"];
/// assert_eq!(finder.find(peer, header.into_iter()), Some("203.0.113.9".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIp {
    trusted: Vec<IpNet>,
    source: ForwardedBy,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
}

/// The header in which the proxies say whom they forward for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedBy {
    /// `X-Forwarded-For`: a list of addresses, each proxy adds one.
    #[default]
    XForwardedFor,
    /// `Forwarded`: the list of RFC 7239, of which `for` is read.
    Forwarded,
    /// `X-Real-IP`: one address, set by the nearest proxy. Of several lines the last one counts.
    XRealIp,
}

impl ClientIp {
    /// Believes the proxies in these networks, and no one else. Reads `X-Forwarded-For`, and counts
    /// IPv4 addresses one by one and IPv6 addresses by `/64`: one customer has all of that.
    pub fn new(trusted: Vec<IpNet>) -> Self {
        let trusted = trusted.into_iter().map(canonical_net).collect();
        Self { trusted, source: ForwardedBy::default(), ipv4_prefix: 32, ipv6_prefix: 64 }
    }

    /// Believes these proxies too.
    pub fn with_extra_trusted(mut self, trusted: &[IpNet]) -> Self {
        self.trusted.extend(trusted.iter().copied().map(canonical_net));
        self
    }

    /// Reads another header.
    pub fn with_source(self, source: ForwardedBy) -> Self {
        Self { source, ..self }
    }

    /// Counts addresses by networks of these sizes.
    pub fn with_prefixes(self, ipv4: u8, ipv6: u8) -> Result<Self, PrefixError> {
        if ipv4 > 32 || ipv6 > 128 {
            return Err(PrefixError { ipv4, ipv6 });
        }
        Ok(Self { ipv4_prefix: ipv4, ipv6_prefix: ipv6, ..self })
    }

    /// The address that the request really comes from.
    ///
    /// `peer` is the other end of the connection; `header_lines` are all values of
    /// [`header`](Self::header), in the order received. Starts with the peer and goes on to the
    /// left as long as an address is trusted. The first that is not is the client; what is left of
    /// it may be invented. An entry that is no address ends the walk too. Without a peer there is
    /// no one to believe, and no answer.
    pub fn find<'h>(
        &self,
        peer: Option<IpAddr>,
        header_lines: impl DoubleEndedIterator<Item = &'h [u8]>,
    ) -> Option<IpAddr> {
        let mut client = peer?.to_canonical();
        if !self.is_trusted(client) {
            return Some(client);
        }
        for entry in entries::from_the_right(self.source, header_lines).take(ENTRIES_MAX) {
            let Some(address) = entry else { break };
            client = address;
            if !self.is_trusted(client) {
                break;
            }
        }
        Some(client)
    }

    /// What to count it under: the address, or its network.
    pub fn key(&self, ip: IpAddr) -> IpNet {
        let ip = ip.to_canonical();
        let prefix = if ip.is_ipv4() { self.ipv4_prefix } else { self.ipv6_prefix };
        IpNet::new(ip, prefix).map_or(IpNet::from(ip), |net| net.trunc())
    }

    /// The name of the header that [`find`](Self::find) reads, in lower case.
    pub fn header(&self) -> &'static str {
        match self.source {
            ForwardedBy::XForwardedFor => "x-forwarded-for",
            ForwardedBy::Forwarded => "forwarded",
            ForwardedBy::XRealIp => "x-real-ip",
        }
    }

    /// Is this the address of a proxy whose word is believed?
    pub fn is_trusted(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.trusted.iter().any(|net| net.contains(&ip))
    }
}

/// A network of IPv4 addresses written as IPv6 is the one of IPv4.
pub(crate) fn canonical_net(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let mapped = v6.network().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96));
    let v4 = mapped.and_then(|(ip, prefix)| Ipv4Net::new(ip, prefix).ok());
    v4.map_or(net, IpNet::V4)
}

/// A size of network that addresses do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixError {
    ipv4: u8,
    ipv6: u8,
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { ipv4: 33.., .. } => {
                write!(f, "an IPv4 network is /0 to /32, not /{}", self.ipv4)
            }
            _ => write!(f, "an IPv6 network is /0 to /128, not /{}", self.ipv6),
        }
    }
}

impl Error for PrefixError {}
