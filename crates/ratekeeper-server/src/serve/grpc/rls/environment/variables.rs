//! Every variable of envoyproxy/ratelimit, and what this server does with it. `docs/envoy.md` has the same
//! table.

/// A variable of envoyproxy/ratelimit.
#[derive(Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) support: Support,
    /// Values that mean what this server does anyway.
    unless: &'static [&'static str],
    /// The variable that turns this one on.
    needs: Option<&'static str>,
    /// What it is the same as, or what to do instead.
    pub(super) about: &'static str,
}

/// What becomes of a variable that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    Supported,
    /// It changes no decision; a warning names it.
    Ignored,
    /// To ignore it would change decisions or lose protection; the server does not start.
    Rejected,
}

impl Support {
    /// Returns the word in the documentation.
    #[cfg(test)]
    fn word(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Ignored => "warning",
            Self::Rejected => "error",
        }
    }
}

const FALSE: &[&str] = &["false", "f", "0"];

const fn supported(name: &'static str, about: &'static str) -> Variable {
    Variable { name, support: Support::Supported, unless: &[], needs: None, about }
}

const fn ignored(
    name: &'static str,
    unless: &'static [&'static str],
    about: &'static str,
) -> Variable {
    Variable { name, support: Support::Ignored, unless, needs: None, about }
}

const fn rejected(
    name: &'static str,
    unless: &'static [&'static str],
    about: &'static str,
) -> Variable {
    Variable { name, support: Support::Rejected, unless, needs: None, about }
}

impl Variable {
    /// It has an effect only if that variable is true.
    const fn with(self, needs: &'static str) -> Self {
        Self { needs: Some(needs), ..self }
    }

    /// Whether its value must not be in a message.
    pub(super) fn is_secret(&self) -> bool {
        self.name.ends_with("_AUTH") || self.name.contains("PASSWORD")
    }

    /// Returns the value for which the variable would have an effect in envoyproxy/ratelimit and has none
    /// here.
    pub(super) fn unsupported_value(&self, get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
        let is_off = |value: &String| FALSE.iter().any(|off| off.eq_ignore_ascii_case(value));
        if self.support == Support::Supported
            || self.needs.is_some_and(|name| get(name).is_none_or(|value| is_off(&value)))
        {
            return None;
        }
        get(self.name)
            .filter(|value| !self.unless.iter().any(|same| same.eq_ignore_ascii_case(value)))
    }
}

const NO_XDS: &str = "part of `CONFIG_TYPE=GRPC_XDS_SOTW`";
const NO_MEMCACHE: &str = "part of `BACKEND_TYPE=memcache`";
const NO_STATSD: &str = "metrics are at `/metrics` of the admin listener, for Prometheus";
const ONE_STORE: &str = "part of `REDIS_PERSECOND`";
const OWN_CONNECTION: &str = "one connection to each Redis server carries all calls, in batches";
const OWN_TRACING: &str = "use `--otlp` or the variables of OpenTelemetry";

/// In the order of its settings.
pub(super) const VARIABLES: &[Variable] = &[
    supported("HOST", "with `PORT`: `--http`"),
    supported("PORT", "with `HOST`: `--http`"),
    supported("DEBUG_HOST", "with `DEBUG_PORT`: `--admin`"),
    supported("DEBUG_PORT", "with `DEBUG_HOST`: `--admin`"),
    supported("GRPC_UDS", "`--grpc unix:PATH`, instead of `GRPC_HOST` and `GRPC_PORT`"),
    supported("GRPC_HOST", "with `GRPC_PORT`: `--grpc`"),
    supported("GRPC_PORT", "with `GRPC_HOST`: `--grpc`"),
    ignored("GRPC_MAX_CONNECTION_AGE", &[], "connections have no maximum age"),
    ignored("GRPC_MAX_CONNECTION_AGE_GRACE", &[], "connections have no maximum age"),
    supported("GRPC_SERVER_USE_TLS", "TLS of the gRPC listener, in place of `--tls-cert`"),
    supported("GRPC_SERVER_TLS_CERT", "its certificate chain; reloaded when it changes"),
    supported("GRPC_SERVER_TLS_KEY", "its private key"),
    supported("GRPC_CLIENT_TLS_CACERT", "the authority of required client certificates"),
    supported("GRPC_CLIENT_TLS_SAN", "a DNS name that client certificates must have"),
    supported("LOG_LEVEL", "`--log-level`; `info` if absent"),
    supported("LOG_FORMAT", "`--log-format`"),
    rejected("CONFIG_TYPE", &["FILE"], "only files are read: mount them, and set `RUNTIME_ROOT`"),
    ignored(
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        FALSE,
        "the server starts without a limit, but needs the folder",
    ),
    ignored("CONFIG_GRPC_XDS_NODE_ID", &[], NO_XDS),
    ignored("CONFIG_GRPC_XDS_NODE_METADATA", &[], NO_XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_URL", &[], NO_XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", &[], NO_XDS),
    ignored("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", &[], NO_XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_USE_TLS", FALSE, NO_XDS),
    ignored("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &[], NO_XDS),
    ignored("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &[], NO_XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &[], NO_XDS),
    ignored("CONFIG_GRPC_XDS_SERVER_TLS_SAN", &[], NO_XDS),
    ignored("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", &[], NO_XDS),
    ignored("XDS_CLIENT_BACKOFF_MAX_INTERVAL", &[], NO_XDS),
    ignored("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", &[], NO_XDS),
    ignored("XDS_CLIENT_BACKOFF_JITTER", &[], NO_XDS),
    ignored("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", &[], NO_XDS),
    ignored("USE_DOG_STATSD", FALSE, NO_STATSD),
    ignored("USE_DOG_STATSD_MOGRIFIERS", &[], NO_STATSD).with("USE_DOG_STATSD"),
    ignored("USE_STATSD", FALSE, NO_STATSD),
    ignored("STATSD_HOST", &[], NO_STATSD).with("USE_STATSD"),
    ignored("STATSD_PORT", &[], NO_STATSD).with("USE_STATSD"),
    ignored("EXTRA_TAGS", &[], "add labels where Prometheus scrapes"),
    ignored("STATS_FLUSH_INTERVAL", &[], NO_STATSD),
    ignored("DISABLE_STATS", FALSE, "metrics are collected in any case"),
    supported("USE_PROMETHEUS", "always: metrics are at `/metrics` of the admin listener"),
    ignored("PROMETHEUS_ADDR", &[], "metrics are at the address of the admin listener"),
    ignored("PROMETHEUS_PATH", &["/metrics"], "metrics are at `/metrics`"),
    ignored("PROMETHEUS_MAPPER_YAML", &[], "metrics have the names in operations.md"),
    ignored("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", FALSE, "durations are in seconds"),
    supported("RUNTIME_ROOT", "the beginning of the folder of `--envoy-config`"),
    supported("RUNTIME_SUBDIRECTORY", "its middle"),
    supported("RUNTIME_APPDIRECTORY", "its end; `config` if absent"),
    supported(
        "RUNTIME_IGNOREDOTFILES",
        "whether files that begin with a dot are skipped; those of Kubernetes (`..data`) always are",
    ),
    supported("RUNTIME_WATCH_ROOT", "either way: all files are checked every second"),
    ignored("EXPIRATION_JITTER_MAX_SECONDS", &["0"], "keys expire when they have no more effect"),
    ignored("LOCAL_CACHE_SIZE_IN_BYTES", &["0"], "each decision is made by the store"),
    supported(
        "NEAR_LIMIT_RATIO",
        "the threshold of `ratekeeper_envoy_near_limit_total` and `ratekeeper_near_limit_total`",
    ),
    supported("CACHE_KEY_PREFIX", "the prefix of keys in Redis"),
    rejected("BACKEND_TYPE", &["redis"], "use Redis or, without `REDIS_URL`, memory"),
    supported("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "always: a denial charges nothing"),
    supported(
        "LIMIT_RESPONSE_HEADERS_ENABLED",
        "the three headers of envoyproxy/ratelimit, in addition to those of `--envoy-headers`",
    ),
    supported("LIMIT_LIMIT_HEADER", "the name of the first; `RateLimit-Limit` if absent"),
    supported("LIMIT_REMAINING_HEADER", "of the second; `RateLimit-Remaining` if absent"),
    supported("LIMIT_RESET_HEADER", "of the third; `RateLimit-Reset` if absent"),
    supported(
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "always: without a single limit the server is not ready",
    ),
    rejected("REDIS_SOCKET_TYPE", &["tcp"], "connect by TCP"),
    supported("REDIS_TYPE", "`SINGLE`, `SENTINEL` or `CLUSTER`"),
    supported("REDIS_URL", "the store; counts are in memory if absent"),
    ignored("REDIS_POOL_SIZE", &[], OWN_CONNECTION),
    supported("REDIS_AUTH", "the password, or `user:password`"),
    supported("REDIS_TLS", "`rediss://`"),
    rejected("REDIS_TLS_CLIENT_CERT", &[], "authenticate by `REDIS_AUTH`").with("REDIS_TLS"),
    rejected("REDIS_TLS_CLIENT_KEY", &[], "authenticate by `REDIS_AUTH`").with("REDIS_TLS"),
    rejected(
        "REDIS_TLS_CACERT",
        &[],
        "add the authority to those of the system, for example by `SSL_CERT_FILE`",
    )
    .with("REDIS_TLS"),
    rejected(
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        FALSE,
        "the certificate needs the name of the server",
    )
    .with("REDIS_TLS"),
    ignored("REDIS_PIPELINE_WINDOW", &["0", "0s"], OWN_CONNECTION),
    ignored("REDIS_PIPELINE_LIMIT", &["0"], OWN_CONNECTION),
    ignored("REDIS_CLUSTER_PIPELINE_PARALLELISM", &[], OWN_CONNECTION),
    ignored(
        "REDIS_PERSECOND",
        FALSE,
        "limits per second are counted in the Redis of `REDIS_URL` too",
    ),
    ignored("REDIS_PERSECOND_SOCKET_TYPE", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_PERSECOND_TYPE", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_PERSECOND_URL", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_PERSECOND_POOL_SIZE", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_PERSECOND_AUTH", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_PERSECOND_TLS", FALSE, ONE_STORE).with("REDIS_PERSECOND"),
    rejected("REDIS_SENTINEL_AUTH", &[], "the sentinels get the password of `REDIS_AUTH`"),
    ignored("REDIS_PERSECOND_SENTINEL_AUTH", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_PERSECOND_PIPELINE_WINDOW", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_PERSECOND_PIPELINE_LIMIT", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored(
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        FALSE,
        "without Redis the server is ready, and limits by itself",
    ),
    ignored("REDIS_TIMEOUT", &[], "a decision waits 5 ms, or the `deadline` of a policy's store"),
    ignored("REDIS_PERSECOND_TIMEOUT", &[], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_POOL_ON_EMPTY_BEHAVIOR", &["WAIT"], OWN_CONNECTION),
    ignored("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", &["WAIT"], ONE_STORE).with("REDIS_PERSECOND"),
    ignored("REDIS_STARTUP_INITIAL_INTERVAL", &[], "the server starts without Redis"),
    ignored("REDIS_STARTUP_MAX_INTERVAL", &[], "the server starts without Redis"),
    ignored("REDIS_STARTUP_MAX_ELAPSED_TIME", &["0", "0s"], "the server starts without Redis"),
    ignored("MEMCACHE_HOST_PORT", &[], NO_MEMCACHE),
    ignored("MEMCACHE_MAX_IDLE_CONNS", &[], NO_MEMCACHE),
    ignored("MEMCACHE_SRV", &[], NO_MEMCACHE),
    ignored("MEMCACHE_SRV_REFRESH", &[], NO_MEMCACHE),
    ignored("MEMCACHE_TLS", FALSE, NO_MEMCACHE),
    ignored("MEMCACHE_TLS_CLIENT_CERT", &[], NO_MEMCACHE),
    ignored("MEMCACHE_TLS_CLIENT_KEY", &[], NO_MEMCACHE),
    ignored("MEMCACHE_TLS_CACERT", &[], NO_MEMCACHE),
    ignored("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", FALSE, NO_MEMCACHE),
    supported("SHADOW_MODE", "statuses say `OVER_LIMIT`, and the overall code is `OK`"),
    supported("QUOTA_MODE", "all descriptors are in [quota mode](#quota-mode)"),
    supported("RESPONSE_DYNAMIC_METADATA", "`--envoy-metadata`"),
    supported("MERGE_DOMAIN_CONFIG", "several files may have one domain"),
    ignored("TRACING_ENABLED", FALSE, OWN_TRACING),
    ignored("TRACING_SERVICE_NAME", &[], OWN_TRACING).with("TRACING_ENABLED"),
    ignored("TRACING_SERVICE_NAMESPACE", &[], OWN_TRACING).with("TRACING_ENABLED"),
    ignored("TRACING_SERVICE_INSTANCE_ID", &[], OWN_TRACING).with("TRACING_ENABLED"),
    ignored("TRACING_EXPORTER_PROTOCOL", &["http"], OWN_TRACING).with("TRACING_ENABLED"),
    ignored("TRACING_SAMPLING_RATE", &["1"], OWN_TRACING).with("TRACING_ENABLED"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = include_str!("../../../../../../../docs/envoy.md");

    #[test]
    fn the_table_of_the_documentation_is_that_of_the_code() {
        let row =
            |one: &Variable| format!("| `{}` | {} | {} |", one.name, one.support.word(), one.about);
        let rows: Vec<_> = VARIABLES.iter().map(row).collect();
        let documented = DOCS.split_once("| variable |  | what it does here |\n|---|---|---|\n");
        let documented = documented.expect("the table").1.split("\n\n").next().unwrap_or_default();
        assert_eq!(
            documented.trim_end(),
            rows.join("\n"),
            "docs/envoy.md needs:\n{}",
            rows.join("\n")
        );
    }

    #[test]
    fn every_variable_is_listed_once() {
        let mut names: Vec<_> = VARIABLES.iter().map(|variable| variable.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), VARIABLES.len());
    }
}
