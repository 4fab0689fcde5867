//! The environment variables that configure envoyproxy/ratelimit.

mod store;
mod variables;

use std::net::{AddrParseError, IpAddr, Ipv4Addr, SocketAddr};
use std::num::ParseIntError;
use std::path::PathBuf;

use http::HeaderName;
use ratekeeper::policy::envoy::SharedDomains;
use ratekeeper::{InvalidRatio, NearLimit};

use super::files::HiddenFiles;
use super::{ConfigFolder, GlobalModes, LimitHeaders};
use crate::choices::LocalAddress;
use crate::listener::tls::TlsFiles;
use crate::log::{LogFormat, LogLevel};
use variables::{Support, VARIABLES};

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
    /// `GRPC_UDS`: the Unix domain socket of the gRPC listener, instead of its address.
    pub(crate) grpc_socket: Option<PathBuf>,
    /// `GRPC_SERVER_USE_TLS` and the files of certificates: TLS of the gRPC listener.
    pub(crate) grpc_tls: Option<TlsFiles>,
    /// `HOST`, `PORT`: the HTTP listener with `/json` and `/healthcheck`.
    pub(crate) http: Option<BindAddress>,
    /// `DEBUG_HOST`, `DEBUG_PORT`: the admin listener.
    pub(crate) admin: Option<BindAddress>,
    /// `RUNTIME_ROOT`, `RUNTIME_SUBDIRECTORY`, `RUNTIME_APPDIRECTORY`, `RUNTIME_IGNOREDOTFILES`,
    /// `MERGE_DOMAIN_CONFIG`: the folder with the files.
    pub(crate) config: Option<ConfigFolder>,
    /// `REDIS_URL`, `REDIS_TYPE`, `REDIS_AUTH`, `REDIS_TLS`: the URL of the store.
    pub(crate) store: Option<String>,
    /// `CACHE_KEY_PREFIX`: the prefix of keys in the store.
    pub(crate) key_prefix: Option<String>,
    /// `SHADOW_MODE`, `QUOTA_MODE`.
    pub(crate) modes: GlobalModes,
    /// `LIMIT_RESPONSE_HEADERS_ENABLED` and the names of the headers.
    pub(crate) limit_headers: Option<LimitHeaders>,
    /// `RESPONSE_DYNAMIC_METADATA`: responses have dynamic metadata.
    pub(crate) has_dynamic_metadata: bool,
    /// `NEAR_LIMIT_RATIO`: from which usage on a limit counts as nearly used up.
    pub(crate) near_limit: NearLimit,
    /// `LOG_LEVEL`.
    pub(crate) log_level: Option<LogLevel>,
    /// `LOG_FORMAT`.
    pub(crate) log_format: Option<LogFormat>,
    /// Variables that are set and have no effect.
    pub(crate) warnings: Vec<IgnoredVariable>,
}

/// A variable that has no effect, and what to do instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IgnoredVariable {
    pub(crate) name: &'static str,
    pub(crate) about: String,
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
    #[error("LOG_LEVEL is \"{0}\"; use error, warn, info, debug or trace")]
    InvalidLogLevel(String),
    #[error("LOG_FORMAT is \"{0}\"; use text or json")]
    InvalidLogFormat(String),
    #[error("{name} is \"{value}\": use true or false")]
    InvalidBoolean { name: &'static str, value: String },
    #[error("{name} is \"{value}\", which is not the name of a header")]
    InvalidHeader { name: &'static str, value: String },
    #[error("{name} is \"{value}\", which is not supported: {about}")]
    Unsupported { name: &'static str, value: String, about: String },
    #[error("{name} is set, which is not supported: {about}")]
    UnsupportedSecret { name: &'static str, about: String },
    #[error("GRPC_SERVER_USE_TLS is true and {0} is not set; set it to a file (PEM)")]
    NoCertificate(&'static str),
    #[error(
        "GRPC_CLIENT_TLS_SAN needs GRPC_CLIENT_TLS_CACERT: without it, clients send no certificate"
    )]
    NoAuthority,
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
    /// `REDIS_URL` are used by other programs too, so they only count if the folder of the files or
    /// `CONFIG_TYPE` is set.
    ///
    /// # Errors
    ///
    /// Returns the first variable with an invalid or unsupported value.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let get: Variables<'_> = &|name| get(name).filter(|value| !value.is_empty());
        if ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "CONFIG_TYPE"]
            .iter()
            .all(|name| get(name).is_none())
        {
            return Ok(Self { warnings: unread_modes(get), ..Self::default() });
        }
        let warnings = ignored_variables(get)?;
        let modes = GlobalModes {
            is_shadow: boolean(get, "SHADOW_MODE")?,
            is_quota: boolean(get, "QUOTA_MODE")?,
        };
        Ok(Self {
            grpc: bind_address(get, "GRPC_HOST", "GRPC_PORT", GRPC_PORT)?,
            grpc_socket: get("GRPC_UDS").map(PathBuf::from),
            grpc_tls: grpc_tls(get)?,
            http: bind_address(get, "HOST", "PORT", HTTP_PORT)?,
            admin: bind_address(get, "DEBUG_HOST", "DEBUG_PORT", DEBUG_PORT)?,
            config: Some(config(get)?),
            store: store::url(get, boolean(get, "REDIS_TLS")?)?,
            key_prefix: get("CACHE_KEY_PREFIX"),
            modes,
            limit_headers: limit_headers(get)?,
            has_dynamic_metadata: boolean(get, "RESPONSE_DYNAMIC_METADATA")?,
            near_limit: near_limit(get)?,
            log_level: log_level(get)?,
            log_format: log_format(get)?,
            warnings,
        })
    }
}

impl Environment {
    /// Returns where the gRPC listener listens, if that is set.
    pub(crate) fn grpc_address(&self, is_public: bool) -> Option<LocalAddress> {
        let socket = self.grpc_socket.clone().map(LocalAddress::Unix);
        socket.or_else(|| Some(LocalAddress::Tcp(self.grpc?.socket_addr(is_public))))
    }
}

/// Returns the variables that are set and have no effect.
fn ignored_variables(get: Variables<'_>) -> Result<Vec<IgnoredVariable>, EnvironmentError> {
    let mut ignored = Vec::new();
    for variable in VARIABLES {
        let Some(value) = variable.unsupported_value(get) else { continue };
        let (name, about) = (variable.name, variable.about.replace('`', ""));
        match variable.support {
            Support::Rejected if variable.is_secret() => {
                return Err(EnvironmentError::UnsupportedSecret { name, about });
            }
            Support::Rejected => return Err(EnvironmentError::Unsupported { name, value, about }),
            _ => ignored.push(IgnoredVariable { name, about }),
        }
    }
    let of_tls = [
        "GRPC_SERVER_TLS_CERT",
        "GRPC_SERVER_TLS_KEY",
        "GRPC_CLIENT_TLS_CACERT",
        "GRPC_CLIENT_TLS_SAN",
    ];
    if !boolean(get, "GRPC_SERVER_USE_TLS")? {
        let unused = of_tls.into_iter().filter(|name| get(name).is_some());
        let about = "GRPC_SERVER_USE_TLS is not true";
        ignored.extend(unused.map(|name| IgnoredVariable { name, about: about.into() }));
    }
    Ok(ignored)
}

/// Returns the modes that are set although the variables are not read, so that limits are enforced.
fn unread_modes(get: Variables<'_>) -> Vec<IgnoredVariable> {
    let set = ["SHADOW_MODE", "QUOTA_MODE"].into_iter().filter(|name| get(name).is_some());
    let about = "it is read only if RUNTIME_ROOT, RUNTIME_SUBDIRECTORY or CONFIG_TYPE is set";
    set.map(|name| IgnoredVariable { name, about: about.into() }).collect()
}

/// Parses a boolean as Go does.
fn boolean(get: Variables<'_>, name: &'static str) -> Result<bool, EnvironmentError> {
    match get(name).as_deref() {
        None | Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(false),
        Some("1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(true),
        Some(value) => Err(EnvironmentError::InvalidBoolean { name, value: value.into() }),
    }
}

fn grpc_tls(get: Variables<'_>) -> Result<Option<TlsFiles>, EnvironmentError> {
    if !boolean(get, "GRPC_SERVER_USE_TLS")? {
        return Ok(None);
    }
    let file = |name| get(name).map(PathBuf::from).ok_or(EnvironmentError::NoCertificate(name));
    let client_ca = get("GRPC_CLIENT_TLS_CACERT").map(PathBuf::from);
    let client_name = get("GRPC_CLIENT_TLS_SAN");
    if client_name.is_some() && client_ca.is_none() {
        return Err(EnvironmentError::NoAuthority);
    }
    let (cert, key) = (file("GRPC_SERVER_TLS_CERT")?, file("GRPC_SERVER_TLS_KEY")?);
    Ok(Some(TlsFiles { cert, key, client_ca, client_name }))
}

fn limit_headers(get: Variables<'_>) -> Result<Option<LimitHeaders>, EnvironmentError> {
    let header = |name: &'static str, default: &str| {
        let value = get(name).unwrap_or_else(|| default.into());
        match HeaderName::try_from(&value) {
            Ok(_) => Ok(value),
            Err(_) => Err(EnvironmentError::InvalidHeader { name, value }),
        }
    };
    Ok(match boolean(get, "LIMIT_RESPONSE_HEADERS_ENABLED")? {
        false => None,
        true => Some(LimitHeaders {
            limit: header("LIMIT_LIMIT_HEADER", "RateLimit-Limit")?,
            remaining: header("LIMIT_REMAINING_HEADER", "RateLimit-Remaining")?,
            reset: header("LIMIT_RESET_HEADER", "RateLimit-Reset")?,
        }),
    })
}

fn near_limit(get: Variables<'_>) -> Result<NearLimit, EnvironmentError> {
    let Some(value) = get("NEAR_LIMIT_RATIO") else { return Ok(NearLimit::default()) };
    value.parse().map_err(|source| EnvironmentError::InvalidNearLimit { value, source })
}

fn log_level(get: Variables<'_>) -> Result<Option<LogLevel>, EnvironmentError> {
    let Some(value) = get("LOG_LEVEL") else { return Ok(None) };
    Ok(Some(match value.to_lowercase().as_str() {
        "panic" | "fatal" | "error" => LogLevel::Error,
        "warn" | "warning" => LogLevel::Warn,
        "info" => LogLevel::Info,
        "debug" => LogLevel::Debug,
        "trace" => LogLevel::Trace,
        _ => return Err(EnvironmentError::InvalidLogLevel(value)),
    }))
}

fn log_format(get: Variables<'_>) -> Result<Option<LogFormat>, EnvironmentError> {
    let Some(value) = get("LOG_FORMAT") else { return Ok(None) };
    Ok(Some(match value.to_lowercase().as_str() {
        "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        _ => return Err(EnvironmentError::InvalidLogFormat(value)),
    }))
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

fn config(get: Variables<'_>) -> Result<ConfigFolder, EnvironmentError> {
    let mut path = PathBuf::from(get("RUNTIME_ROOT").unwrap_or_else(|| ROOT.into()));
    path.extend(get("RUNTIME_SUBDIRECTORY"));
    path.push(get("RUNTIME_APPDIRECTORY").unwrap_or_else(|| "config".into()));
    let hidden = match boolean(get, "RUNTIME_IGNOREDOTFILES")? {
        true => HiddenFiles::Skip,
        false => HiddenFiles::Read,
    };
    let shared_domains = match boolean(get, "MERGE_DOMAIN_CONFIG")? {
        true => SharedDomains::Merge,
        false => SharedDomains::Reject,
    };
    Ok(ConfigFolder { path, hidden, shared_domains })
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
             NEAR_LIMIT_RATIO=0.9 RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit QUOTA_MODE=1 \
             RESPONSE_DYNAMIC_METADATA=t MERGE_DOMAIN_CONFIG=true RUNTIME_IGNOREDOTFILES=true \
             LOG_LEVEL=WARN LOG_FORMAT=json CACHE_KEY_PREFIX=shop: GRPC_UDS=/run/rl.sock LIMIT_RESPONSE_HEADERS_ENABLED=true \
             LIMIT_LIMIT_HEADER=A-Limit GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=c.pem \
             GRPC_SERVER_TLS_KEY=k.pem GRPC_CLIENT_TLS_CACERT=ca.pem GRPC_CLIENT_TLS_SAN=envoy",
        );
        let any_host = |port| Some(BindAddress { ip: None, port });
        let expected = Environment {
            grpc: Some(BindAddress { ip: Some([127, 0, 0, 1].into()), port: 8081 }),
            http: any_host(8080),
            admin: any_host(6070),
            grpc_socket: Some("/run/rl.sock".into()),
            grpc_tls: Some(TlsFiles {
                cert: "c.pem".into(),
                key: "k.pem".into(),
                client_ca: Some("ca.pem".into()),
                client_name: Some("envoy".into()),
            }),
            config: Some(ConfigFolder {
                path: "/data/ratelimit/config".into(),
                hidden: HiddenFiles::Skip,
                shared_domains: SharedDomains::Merge,
            }),
            store: None,
            key_prefix: Some("shop:".into()),
            modes: GlobalModes { is_shadow: true, is_quota: true },
            limit_headers: Some(LimitHeaders {
                limit: "A-Limit".into(),
                remaining: "RateLimit-Remaining".into(),
                reset: "RateLimit-Reset".into(),
            }),
            has_dynamic_metadata: true,
            near_limit: "0.9".parse().unwrap(),
            log_level: Some(LogLevel::Warn),
            log_format: Some(LogFormat::Json),
            warnings: Vec::new(),
        };
        assert_eq!(set, Ok(expected));
        let defaults = read("RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_APPDIRECTORY=limits").unwrap();
        let folder = ConfigFolder {
            path: "/srv/runtime_data/current/ratelimit/limits".into(),
            hidden: HiddenFiles::Read,
            shared_domains: SharedDomains::Reject,
        };
        assert_eq!(defaults.config, Some(folder));
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
            assert_eq!(set.modes.is_shadow, is_shadow, "{value}");
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
            "SHADOW_MODE=yes",
            "LOG_LEVEL=loud",
            "LOG_FORMAT=xml",
            "CONFIG_TYPE=GRPC_XDS_SOTW",
            "REDIS_TLS=true REDIS_TLS_CACERT=/ca.pem",
            "REDIS_SENTINEL_AUTH=secret",
            "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=c.pem",
            "LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_RESET_HEADER=a:b",
        ];
        for variables in bad {
            let error = read(&format!("RUNTIME_ROOT=/data {variables}")).unwrap_err().to_string();
            let mut names = variables.split(' ').filter_map(|pair| pair.split_once('='));
            assert!(names.any(|(name, _)| error.contains(name)), "{variables}: {error}");
        }
        // Its users set no folder.
        let error = read("CONFIG_TYPE=GRPC_XDS_SOTW").unwrap_err().to_string();
        assert!(error.contains("only files are read"), "{error}");
    }

    #[test]
    fn no_message_has_a_password() {
        let secrets = VARIABLES.iter().filter(|variable| variable.is_secret());
        let names: Vec<_> = secrets.map(|variable| variable.name).collect();
        assert!(names.contains(&"REDIS_AUTH") && names.contains(&"REDIS_SENTINEL_AUTH"));
        for name in names {
            let set = read(&format!("RUNTIME_ROOT=/data REDIS_PERSECOND=true {name}=hunter2"));
            let message = match set {
                Ok(set) => format!("{:?}", set.warnings),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!message.contains("hunter2"), "{message}");
        }
        let error = read("RUNTIME_ROOT=/data REDIS_SENTINEL_AUTH=hunter2").unwrap_err();
        let expected = "REDIS_SENTINEL_AUTH is set, which is not supported: the sentinels get the password \
                        of REDIS_AUTH";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn variables_without_effect_are_named() {
        let ignored = |variables: &str| -> Vec<&str> {
            let set = read(&format!("RUNTIME_ROOT=/data {variables}")).unwrap();
            set.warnings.iter().map(|variable| variable.name).collect()
        };
        let unread = read("SHADOW_MODE=true").unwrap();
        assert_eq!(unread.warnings[0].name, "SHADOW_MODE", "it is not read without the others");
        assert_eq!(ignored("GRPC_CLIENT_TLS_SAN=a"), ["GRPC_CLIENT_TLS_SAN"]);
        assert_eq!(ignored("REDIS_PERSECOND=true"), ["REDIS_PERSECOND"]);
        assert_eq!(
            ignored("REDIS_POOL_SIZE=20 USE_STATSD=true"),
            ["USE_STATSD", "REDIS_POOL_SIZE"]
        );
        assert_eq!(ignored("GRPC_SERVER_TLS_CERT=c.pem"), ["GRPC_SERVER_TLS_CERT"]);
        // Neither of these has an effect in envoyproxy/ratelimit.
        let without_effect =
            "USE_STATSD=false STATSD_HOST=a REDIS_PERSECOND_URL=b REDIS_TLS_CACERT=c";
        assert!(ignored(without_effect).is_empty());
        assert!(ignored("CONFIG_TYPE=FILE BACKEND_TYPE=redis REDIS_SOCKET_TYPE=tcp").is_empty());
    }
}
