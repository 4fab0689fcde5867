//! Finds the address of a client behind proxies.
//!
//! A client can put any addresses at the left of a forwarding header such as `X-Forwarded-For`. The
//! list is therefore read from the right, and only as far as the entries are trusted proxies.

mod entries;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

pub use ipnet::IpNet;
use ipnet::Ipv4Net;

/// Maximum number of entries of a header that are read.
const ENTRIES_MAX: usize = 64;

/// Finds the client's address behind trusted proxies, and the network it is counted under.
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

/// The header in which proxies send the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedBy {
    /// `X-Forwarded-For`: a list of addresses, to which each proxy appends one.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239), of which `for` is read.
    Forwarded,
    /// `X-Real-IP`: one address, set by the nearest proxy. Of several lines the last one counts.
    XRealIp,
}

impl ClientIp {
    /// Trusts the proxies in these networks. Reads `X-Forwarded-For`, and counts by IPv4 address and by
    /// IPv6 `/64` network, which is usually assigned to one customer.
    #[must_use]
    pub fn new(trusted: Vec<IpNet>) -> Self {
        let trusted = trusted.into_iter().map(canonical_net).collect();
        Self { trusted, source: ForwardedBy::default(), ipv4_prefix: 32, ipv6_prefix: 64 }
    }

    /// Trusts these proxies too.
    #[must_use]
    pub fn with_extra_trusted(mut self, trusted: &[IpNet]) -> Self {
        self.trusted.extend(trusted.iter().copied().map(canonical_net));
        self
    }

    /// Sets the header to read.
    #[must_use]
    pub fn with_source(self, source: ForwardedBy) -> Self {
        Self { source, ..self }
    }

    /// Sets the prefix lengths of the networks to count by.
    ///
    /// # Errors
    ///
    /// Returns an error if a prefix is longer than an address.
    pub fn with_prefixes(self, ipv4: u8, ipv6: u8) -> Result<Self, PrefixError> {
        if ipv4 > 32 || ipv6 > 128 {
            return Err(PrefixError { ipv4, ipv6 });
        }
        Ok(Self { ipv4_prefix: ipv4, ipv6_prefix: ipv6, ..self })
    }

    /// Returns the client's address.
    ///
    /// `peer` is the peer address of the connection; `header_lines` are all values of
    /// [`header`](Self::header), in the order received. Starts with the peer and moves left while the
    /// address is trusted. The first untrusted address is the client; entries left of it may be
    /// forged. An invalid entry also ends the search. Returns `None` without a peer.
    #[must_use]
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

    /// Returns the network that an address is counted under.
    #[must_use]
    pub fn key(&self, ip: IpAddr) -> IpNet {
        let ip = ip.to_canonical();
        let prefix = if ip.is_ipv4() { self.ipv4_prefix } else { self.ipv6_prefix };
        IpNet::new(ip, prefix).map_or(IpNet::from(ip), |net| net.trunc())
    }

    /// Returns the name of the header that [`find`](Self::find) reads, in lower case.
    #[must_use]
    pub fn header(&self) -> &'static str {
        match self.source {
            ForwardedBy::XForwardedFor => "x-forwarded-for",
            ForwardedBy::Forwarded => "forwarded",
            ForwardedBy::XRealIp => "x-real-ip",
        }
    }

    /// Whether this is the address of a trusted proxy.
    #[must_use]
    pub fn is_trusted(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.trusted.iter().any(|net| net.contains(&ip))
    }
}

/// Converts a network of IPv4-mapped IPv6 addresses to an IPv4 network.
pub(crate) fn canonical_net(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let mapped = v6.network().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96));
    let v4 = mapped.and_then(|(ip, prefix)| Ipv4Net::new(ip, prefix).ok());
    v4.map_or(net, IpNet::V4)
}

/// A prefix length longer than an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixError {
    ipv4: u8,
    ipv6: u8,
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { ipv4: 33.., .. } => {
                write!(f, "an IPv4 prefix length is 0 to 32, not {}", self.ipv4)
            }
            _ => write!(f, "an IPv6 prefix length is 0 to 128, not {}", self.ipv6),
        }
    }
}

impl Error for PrefixError {}
