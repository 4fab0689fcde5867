//! How envoyproxy/ratelimit is set up: by environment variables.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ratekeeper::NearLimit;

const ROOT: &str = "/srv/runtime_data/current";
const GRPC_PORT: u16 = 8081;
const HTTP_PORT: u16 = 8080;
const DEBUG_PORT: u16 = 6070;

/// Tells the value of a variable.
type Variables<'v> = &'v dyn Fn(&str) -> Option<String>;

/// What the variables say. What they do not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// `GRPC_HOST`, `GRPC_PORT`: for Envoy.
    pub(crate) grpc: Option<Place>,
    /// `HOST`, `PORT`: for `/json` and `/healthcheck`.
    pub(crate) http: Option<Place>,
    /// `DEBUG_HOST`, `DEBUG_PORT`: for those who run it.
    pub(crate) admin: Option<Place>,
    /// `RUNTIME_ROOT`, `RUNTIME_SUBDIRECTORY`, `RUNTIME_APPDIRECTORY`: the folder with the files.
    pub(crate) config: Option<PathBuf>,
    /// `REDIS_URL`, `REDIS_TYPE`, `REDIS_AUTH`, `REDIS_TLS`: the store, as an address of ours.
    pub(crate) store: Option<String>,
    /// `SHADOW_MODE`: every limit only counts.
    pub(crate) is_shadow: bool,
    /// `NEAR_LIMIT_RATIO`: from where on a limit is nearly used up.
    pub(crate) near_limit: NearLimit,
}

/// Where to listen, as far as it was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    ip: Option<IpAddr>,
    port: u16,
}

impl Place {
    /// Without a host, envoyproxy/ratelimit lets everybody in; here that takes a word.
    pub(crate) fn address(self, is_public: bool) -> SocketAddr {
        let otherwise = if is_public { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
        SocketAddr::new(self.ip.unwrap_or(otherwise.into()), self.port)
    }
}

impl Environment {
    /// Reads them by this function, which tells a variable's value. Names such as `PORT` and
    /// `REDIS_URL` have many meanings; they are for us only if it is said where the files are.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let Some(config) = config(&get) else { return Ok(Self::default()) };
        let is_true = |name: &str| {
            get(name)
                .is_some_and(|value| matches!(value.to_lowercase().as_str(), "true" | "1" | "t"))
        };
        if let Some(kind) = get("BACKEND_TYPE").filter(|kind| kind != "redis") {
            return Err(format!("BACKEND_TYPE is {kind}, but counts can be kept in redis or here"));
        }
        Ok(Self {
            grpc: place(&get, "GRPC_HOST", ("GRPC_PORT", GRPC_PORT))?,
            http: place(&get, "HOST", ("PORT", HTTP_PORT))?,
            admin: place(&get, "DEBUG_HOST", ("DEBUG_PORT", DEBUG_PORT))?,
            config: Some(config),
            store: store(&get, is_true("REDIS_TLS"))?,
            is_shadow: is_true("SHADOW_MODE"),
            near_limit: near_limit(&get)?,
        })
    }
}

fn near_limit(get: Variables<'_>) -> Result<NearLimit, String> {
    let Some(ratio) = get("NEAR_LIMIT_RATIO") else { return Ok(NearLimit::default()) };
    ratio.parse().map_err(|error| format!("NEAR_LIMIT_RATIO is \"{ratio}\": {error}"))
}

fn place(
    get: Variables<'_>,
    host: &str,
    (port, otherwise): (&str, u16),
) -> Result<Option<Place>, String> {
    let ip = get(host).map(|text| {
        text.parse().map_err(|_| format!("{host} is \"{text}\", which is no IP address"))
    });
    let number = get(port)
        .map(|text| text.parse().map_err(|_| format!("{port} is \"{text}\", which is no port")));
    Ok(match (ip.transpose()?, number.transpose()?) {
        (None, None) => None,
        (ip, number) => Some(Place { ip, port: number.unwrap_or(otherwise) }),
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

fn store(get: Variables<'_>, is_tls: bool) -> Result<Option<String>, String> {
    let Some(url) = get("REDIS_URL") else { return Ok(None) };
    if let Some(kind) = get("REDIS_SOCKET_TYPE").filter(|kind| kind != "tcp") {
        return Err(format!("REDIS_SOCKET_TYPE is {kind}, but only tcp is supported"));
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
            let (service, sentinels) = hosts.split_once(',').ok_or(
                "REDIS_URL of a SENTINEL is the name of the service and the sentinels: \
                 mymaster,10.0.0.1:26379,10.0.0.2:26379",
            )?;
            format!("{base}+sentinel://{user}{sentinels}/{service}")
        }
        _ => return Err(format!("REDIS_TYPE is {kind}; there are SINGLE, SENTINEL and CLUSTER")),
    };
    Ok(Some(address))
}

/// A password, or a user and a password.
fn credentials(auth: &str) -> String {
    match auth.split_once(':') {
        Some((user, password)) => format!("{}:{}@", escaped(user), escaped(password)),
        None => format!(":{}@", escaped(auth)),
    }
}

/// As it may stand in an address.
fn escaped(text: &str) -> String {
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

    fn read(variables: &str) -> Result<Environment, String> {
        Environment::read(|name| {
            let mut pairs = variables.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn nothing_set_is_nothing_said() {
        assert_eq!(read(""), Ok(Environment::default()));
        assert_eq!(read("REDIS_URL=a:1 PORT=80 HOST=here"), Ok(Environment::default()));
    }

    #[test]
    fn what_others_have_set_is_understood() {
        let set = read(
            "GRPC_PORT=8081 GRPC_HOST=127.0.0.1 PORT=8080 DEBUG_PORT=6070 SHADOW_MODE=true \
             NEAR_LIMIT_RATIO=0.9 RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit",
        );
        let anywhere = |port| Some(Place { ip: None, port });
        let expected = Environment {
            grpc: Some(Place { ip: Some([127, 0, 0, 1].into()), port: 8081 }),
            http: anywhere(8080),
            admin: anywhere(6070),
            config: Some("/data/ratelimit/config".into()),
            store: None,
            is_shadow: true,
            near_limit: "0.9".parse().unwrap(),
        };
        assert_eq!(set, Ok(expected));
        let at_home = read("RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_APPDIRECTORY=limits").unwrap();
        assert_eq!(at_home.config, Some("/srv/runtime_data/current/ratelimit/limits".into()));
    }

    #[test]
    fn without_a_host_only_this_machine_is_let_in_unless_somebody_says_so() {
        let address = |variables: &str, is_public| {
            let set = read(&format!("RUNTIME_ROOT=/data {variables}")).unwrap();
            set.http.unwrap().address(is_public).to_string()
        };
        assert_eq!(address("PORT=80", false), "127.0.0.1:80");
        assert_eq!(address("PORT=80", true), "0.0.0.0:80");
        assert_eq!(address("HOST=192.0.2.1", false), "192.0.2.1:8080");
        assert_eq!(address("HOST=::1 PORT=80", true), "[::1]:80");
    }

    #[test]
    fn words_for_yes_are_those_of_others() {
        for (word, is_shadow) in [("true", true), ("TRUE", true), ("1", true), ("false", false)] {
            let set = read(&format!("RUNTIME_ROOT=/data SHADOW_MODE={word}")).unwrap();
            assert_eq!(set.is_shadow, is_shadow, "{word}");
        }
    }

    #[test]
    fn stores_are_translated() {
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
    fn what_cannot_be_done_is_said() {
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
