//! The environment variables that configure envoyproxy/ratelimit.

use std::net::{AddrParseError, IpAddr, Ipv4Addr, SocketAddr};
use std::num::ParseIntError;
use std::path::PathBuf;

use ratekeeper::{InvalidRatio, NearLimit};

const ROOT: &str = "/srv/runtime_data/current";
const GRPC_PORT: u16 = 8081;
const HTTP_PORT: u16 = 8080;
const DEBUG_PORT: u16 = 6070;

/// Returns the value of a variable.
type Variables<'v> = &'v dyn Fn(&str) -> Option<String>;

/// The settings of the environment. A variable that is not set leaves its field empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// `GRPC_HOST`, `GRPC_PORT`: the gRPC listener.
    pub(crate) grpc: Option<BindAddress>,
    /// `HOST`, `PORT`: the HTTP listener with `/json` and `/healthcheck`.
    pub(crate) http: Option<BindAddress>,
    /// `DEBUG_HOST`, `DEBUG_PORT`: the admin listener.
    pub(crate) admin: Option<BindAddress>,
    /// `RUNTIME_ROOT`, `RUNTIME_SUBDIRECTORY`, `RUNTIME_APPDIRECTORY`: the folder with the files.
    pub(crate) config: Option<PathBuf>,
    /// `REDIS_URL`, `REDIS_TYPE`, `REDIS_AUTH`, `REDIS_TLS`: the URL of the store.
    pub(crate) store: Option<String>,
    /// `SHADOW_MODE`: all limits are in shadow mode.
    pub(crate) is_shadow: bool,
    /// `NEAR_LIMIT_RATIO`: from which usage on a limit counts as nearly used up.
    pub(crate) near_limit: NearLimit,
}

/// The address of a listener; the host may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BindAddress {
    ip: Option<IpAddr>,
    port: u16,
}

impl BindAddress {
    /// Returns the address. Without a host, envoyproxy/ratelimit listens on all interfaces; here that must
    /// be allowed explicitly.
    pub(crate) fn socket_addr(self, is_public: bool) -> SocketAddr {
        let default = if is_public { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
        SocketAddr::new(self.ip.unwrap_or(default.into()), self.port)
    }
}

/// Why an environment variable cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvironmentError {
    #[error("{name} is \"{value}\": {source}; use an IP address")]
    InvalidHost { name: &'static str, value: String, source: AddrParseError },
    #[error("{name} is \"{value}\": {source}; use a port from 0 to 65535")]
    InvalidPort { name: &'static str, value: String, source: ParseIntError },
    #[error("NEAR_LIMIT_RATIO is \"{value}\": {source}")]
    InvalidNearLimit { value: String, source: InvalidRatio },
    #[error("BACKEND_TYPE is \"{0}\"; only redis is supported, or no store at all")]
    UnsupportedBackend(String),
    #[error("REDIS_SOCKET_TYPE is \"{0}\"; only tcp is supported")]
    UnsupportedSocket(String),
    #[error("REDIS_TYPE is \"{0}\"; use SINGLE, SENTINEL or CLUSTER")]
    UnknownRedisType(String),
    #[error(
        "REDIS_URL with REDIS_TYPE=SENTINEL needs the service name and the sentinels, such as \
         mymaster,10.0.0.1:26379,10.0.0.2:26379"
    )]
    NoSentinels,
}

impl Environment {
    /// Reads the environment by a function that returns the value of a variable. Names such as `PORT` and
    /// `REDIS_URL` are used by other programs too, so they only count if the folder of the files is set.
    ///
    /// # Errors
    ///
    /// Returns the first variable with an invalid or unsupported value.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let Some(config) = config(&get) else { return Ok(Self::default()) };
        let is_true = |name: &str| {
            get(name)
                .is_some_and(|value| matches!(value.to_lowercase().as_str(), "true" | "1" | "t"))
        };
        if let Some(kind) = get("BACKEND_TYPE").filter(|kind| kind != "redis") {
            return Err(EnvironmentError::UnsupportedBackend(kind));
        }
        Ok(Self {
            grpc: bind_address(&get, "GRPC_HOST", "GRPC_PORT", GRPC_PORT)?,
            http: bind_address(&get, "HOST", "PORT", HTTP_PORT)?,
            admin: bind_address(&get, "DEBUG_HOST", "DEBUG_PORT", DEBUG_PORT)?,
            config: Some(config),
            store: store(&get, is_true("REDIS_TLS"))?,
            is_shadow: is_true("SHADOW_MODE"),
            near_limit: near_limit(&get)?,
        })
    }
}

fn near_limit(get: Variables<'_>) -> Result<NearLimit, EnvironmentError> {
    let Some(value) = get("NEAR_LIMIT_RATIO") else { return Ok(NearLimit::default()) };
    value.parse().map_err(|source| EnvironmentError::InvalidNearLimit { value, source })
}

/// Returns the address if the host or the port is set.
fn bind_address(
    get: Variables<'_>,
    host: &'static str,
    port: &'static str,
    default_port: u16,
) -> Result<Option<BindAddress>, EnvironmentError> {
    let ip = get(host).map(|value| {
        let name = host;
        value.parse().map_err(|source| EnvironmentError::InvalidHost { name, value, source })
    });
    let number = get(port).map(|value| {
        let name = port;
        value.parse().map_err(|source| EnvironmentError::InvalidPort { name, value, source })
    });
    Ok(match (ip.transpose()?, number.transpose()?) {
        (None, None) => None,
        (ip, number) => Some(BindAddress { ip, port: number.unwrap_or(default_port) }),
    })
}

fn config(get: Variables<'_>) -> Option<PathBuf> {
    let (root, below) = (get("RUNTIME_ROOT"), get("RUNTIME_SUBDIRECTORY"));
    if root.is_none() && below.is_none() {
        return None;
    }
    let folder = PathBuf::from(root.unwrap_or_else(|| ROOT.into()));
    let folder = below.map_or(folder.clone(), |below| folder.join(below));
    Some(folder.join(get("RUNTIME_APPDIRECTORY").unwrap_or_else(|| "config".into())))
}

fn store(get: Variables<'_>, is_tls: bool) -> Result<Option<String>, EnvironmentError> {
    let Some(url) = get("REDIS_URL") else { return Ok(None) };
    if let Some(kind) = get("REDIS_SOCKET_TYPE").filter(|kind| kind != "tcp") {
        return Err(EnvironmentError::UnsupportedSocket(kind));
    }
    let (is_tls, hosts) = match url.split_once("://") {
        Some(("rediss", hosts)) => (true, hosts),
        Some(("redis" | "tcp", hosts)) => (is_tls, hosts),
        Some(_) => return Ok(Some(url)),
        None => (is_tls, url.as_str()),
    };
    let base = if is_tls { "rediss" } else { "redis" };
    let user = get("REDIS_AUTH").map(|auth| credentials(&auth)).unwrap_or_default();
    let kind = get("REDIS_TYPE").unwrap_or_else(|| "SINGLE".into()).to_uppercase();
    let address = match kind.as_str() {
        "SINGLE" => format!("{base}://{user}{hosts}"),
        "CLUSTER" => format!("{base}+cluster://{user}{hosts}"),
        "SENTINEL" => {
            let (service, sentinels) =
                hosts.split_once(',').ok_or(EnvironmentError::NoSentinels)?;
            format!("{base}+sentinel://{user}{sentinels}/{service}")
        }
        _ => return Err(EnvironmentError::UnknownRedisType(kind)),
    };
    Ok(Some(address))
}

/// Returns the user information of a URL for `password` or `user:password`.
fn credentials(auth: &str) -> String {
    match auth.split_once(':') {
        Some((user, password)) => format!("{}:{}@", percent_encode(user), percent_encode(password)),
        None => format!(":{}@", percent_encode(auth)),
    }
}

/// Percent-encodes text for a URL.
fn percent_encode(text: &str) -> String {
    let keep = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let escape = |byte: u8| match keep(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &str) -> Result<Environment, EnvironmentError> {
        Environment::read(|name| {
            let mut pairs = variables.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn without_a_folder_nothing_is_set() {
        assert_eq!(read(""), Ok(Environment::default()));
        assert_eq!(read("REDIS_URL=a:1 PORT=80 HOST=here"), Ok(Environment::default()));
    }

    #[test]
    fn variables_of_envoyproxy_ratelimit_are_read() {
        let set = read(
            "GRPC_PORT=8081 GRPC_HOST=127.0.0.1 PORT=8080 DEBUG_PORT=6070 SHADOW_MODE=true \
             NEAR_LIMIT_RATIO=0.9 RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit",
        );
        let any_host = |port| Some(BindAddress { ip: None, port });
        let expected = Environment {
            grpc: Some(BindAddress { ip: Some([127, 0, 0, 1].into()), port: 8081 }),
            http: any_host(8080),
            admin: any_host(6070),
            config: Some("/data/ratelimit/config".into()),
            store: None,
            is_shadow: true,
            near_limit: "0.9".parse().unwrap(),
        };
        assert_eq!(set, Ok(expected));
        let defaults = read("RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_APPDIRECTORY=limits").unwrap();
        assert_eq!(defaults.config, Some("/srv/runtime_data/current/ratelimit/limits".into()));
    }

    #[test]
    fn without_a_host_only_loopback_is_bound_unless_public_is_allowed() {
        let address = |variables: &str, is_public| {
            let set = read(&format!("RUNTIME_ROOT=/data {variables}")).unwrap();
            set.http.unwrap().socket_addr(is_public).to_string()
        };
        assert_eq!(address("PORT=80", false), "127.0.0.1:80");
        assert_eq!(address("PORT=80", true), "0.0.0.0:80");
        assert_eq!(address("HOST=192.0.2.1", false), "192.0.2.1:8080");
        assert_eq!(address("HOST=::1 PORT=80", true), "[::1]:80");
    }

    #[test]
    fn booleans_are_parsed_as_envoyproxy_ratelimit_does() {
        for (value, is_shadow) in [("true", true), ("TRUE", true), ("1", true), ("false", false)] {
            let set = read(&format!("RUNTIME_ROOT=/data SHADOW_MODE={value}")).unwrap();
            assert_eq!(set.is_shadow, is_shadow, "{value}");
        }
    }

    #[test]
    fn redis_variables_become_a_store_url() {
        let cases = [
            ("REDIS_URL=redis:6379", "redis://redis:6379"),
            ("REDIS_URL=rediss://redis:6379", "rediss://redis:6379"),
            ("REDIS_URL=redis:6379 REDIS_TLS=true REDIS_AUTH=a@b", "rediss://:a%40b@redis:6379"),
            ("REDIS_URL=a:1,b:2 REDIS_TYPE=cluster", "redis+cluster://a:1,b:2"),
            ("REDIS_URL=a:1 REDIS_AUTH=ann:secret", "redis://ann:secret@a:1"),
            ("REDIS_URL=main,a:1,b:2 REDIS_TYPE=SENTINEL", "redis+sentinel://a:1,b:2/main"),
            (
                "REDIS_URL=main,a:1 REDIS_TYPE=sentinel REDIS_AUTH=s REDIS_TLS=true",
                "rediss+sentinel://:s@a:1/main",
            ),
            (
                "REDIS_URL=a:1 REDIS_TYPE=CLUSTER REDIS_AUTH=ann:s/1 REDIS_TLS=1",
                "rediss+cluster://ann:s%2F1@a:1",
            ),
        ];
        for (variables, address) in cases {
            let set = read(&format!("RUNTIME_ROOT=/data {variables}")).unwrap();
            assert_eq!(set.store.as_deref(), Some(address), "{variables}");
        }
    }

    #[test]
    fn unsupported_values_are_errors() {
        let bad = [
            "GRPC_PORT=80810",
            "GRPC_PORT=1 GRPC_HOST=here",
            "BACKEND_TYPE=memcache",
            "NEAR_LIMIT_RATIO=80",
            "REDIS_URL=/tmp/s REDIS_SOCKET_TYPE=unix",
            "REDIS_URL=a:1 REDIS_TYPE=ring",
            "REDIS_URL=a:1 REDIS_TYPE=SENTINEL",
            "NEAR_LIMIT_RATIO=1.5",
            "NEAR_LIMIT_RATIO=most",
        ];
        for variables in bad {
            assert!(read(&format!("RUNTIME_ROOT=/data {variables}")).is_err(), "{variables}");
        }
    }
}
