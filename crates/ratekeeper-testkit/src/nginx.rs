//! nginx, with the configuration of a test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;

use crate::port::free_port;
use crate::process::{Process, temp_dir};
use crate::programs;
use crate::wait::wait_until;
use tempfile::TempDir;

const ACCESS_LOG: &str = "access.log";

/// A limit of nginx's `limit_req`, on all requests together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NginxLimit {
    /// `rate` of `limit_req_zone`, such as `10r/s` or `30r/m`.
    pub rate: String,
    /// `burst` of `limit_req`: the excess that is delayed, or accepted at once if `nodelay`.
    pub burst: u32,
    /// `nodelay` of `limit_req`.
    pub nodelay: bool,
    /// `limit_req_status`: the status of refusals, which is 503 in nginx by default.
    pub status: u16,
}

/// What an nginx with a limit has logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NginxLimitCounts {
    /// Requests that were accepted, at once or delayed.
    pub accepted: u64,
    /// Requests that were accepted after a delay.
    pub delayed: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// A running nginx, killed on drop.
pub struct Nginx {
    _process: Process,
    folder: TempDir,
    port: u16,
}

impl Nginx {
    /// Starts nginx on a free port, with these directives in its `server` block.
    pub fn start(server: &str) -> Nginx {
        Self::start_with(|_| String::new(), server)
    }

    /// Starts nginx on a free port, with a limit in front of a static response with status 200.
    pub fn with_limit(limit: &NginxLimit) -> Nginx {
        let NginxLimit { rate, burst, nodelay, status } = limit;
        let burst = if *burst > 0 { format!("burst={burst}") } else { String::new() };
        let nodelay = if *nodelay { "nodelay" } else { "" };
        // `return` comes before `limit_req`, so it has to be in a server behind the one with the limit.
        let http = |dir: &Path| {
            let dir = dir.display();
            format!(
                "limit_req_zone $server_port zone=all:1m rate={rate};
                 log_format limit '$limit_req_status';
                 upstream static {{ server unix:{dir}/static.sock; keepalive 32; }}
                 server {{ listen unix:{dir}/static.sock; keepalive_requests 1000000; return 200 'ok'; }}"
            )
        };
        let server = format!(
            "access_log {ACCESS_LOG} limit;
             limit_req zone=all {burst} {nodelay}; limit_req_status {status};
             location / {{ proxy_pass http://static; proxy_http_version 1.1; proxy_set_header Connection ''; }}"
        );
        Self::start_with(http, &server)
    }

    /// Starts nginx with what `http` returns for its folder in the `http` block.
    fn start_with(http: impl FnOnce(&Path) -> String, server: &str) -> Nginx {
        let folder = temp_dir();
        let (port, dir) = (free_port(), folder.path().display().to_string());
        let http = http(folder.path());
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {dir}/{name};"))
            .join(" ");
        let text = format!(
            "daemon off; master_process off; pid {dir}/nginx.pid; error_log stderr;
             events {{ worker_connections 1024; }}
             http {{ access_log off; {temporary} {http}
               server {{ listen 127.0.0.1:{port}; {server} }} }}"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, text).expect("write the configuration");
        let args = ["-p", &dir, "-c", &file.display().to_string()].map(str::to_string);
        let mut process = Process::spawn_in(folder.path(), &programs::nginx(), &args);
        process
            .wait_until_ready("nginx", |_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        Nginx { _process: process, folder, port }
    }

    /// Returns its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns what it has written to `access.log`.
    pub fn access_log(&self) -> String {
        fs::read_to_string(self.folder.path().join(ACCESS_LOG)).unwrap_or_default()
    }

    /// Returns what one [with a limit](Self::with_limit) has logged. nginx logs a request once it has sent the
    /// response, so the last ones may be missing.
    pub fn limit_counts(&self) -> NginxLimitCounts {
        let log = self.access_log();
        let mut counts = NginxLimitCounts::default();
        for line in log.lines() {
            match line {
                "PASSED" => counts.accepted += 1,
                "DELAYED" => {
                    counts.accepted += 1;
                    counts.delayed += 1;
                }
                "REJECTED" => counts.refused += 1,
                // Bytes that are not a request, or the start of a line.
                _ => {}
            }
        }
        counts
    }

    /// Waits until one [with a limit](Self::with_limit) has logged this many requests, and returns its counts.
    ///
    /// # Panics
    ///
    /// After [`TIMEOUT`](crate::TIMEOUT).
    pub fn wait_for_limit_counts(&self, requests: u64) -> NginxLimitCounts {
        let mut counts = NginxLimitCounts::default();
        wait_until(&format!("nginx logs {requests} requests"), || {
            counts = self.limit_counts();
            counts.accepted + counts.refused >= requests
        });
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::http1::Client;

    /// Returns how many requests of 16 threads, 3 each, had each of two statuses.
    fn send(nginx: &Nginx, statuses: [u16; 2]) -> [usize; 2] {
        let all: Vec<u16> = thread::scope(|scope| {
            let client = || {
                let mut client = Client::connect(nginx.address());
                let post = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n1";
                [client.get("/").status(), client.request(post).status(), client.get("/").status()]
            };
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(client)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        statuses.map(|status| all.iter().filter(|other| **other == status).count())
    }

    #[test]
    fn nginx_accepts_one_and_its_burst() {
        for status in [429, 503] {
            // One a minute: none is added during the test.
            let rate = "1r/m".to_string();
            let nginx = Nginx::with_limit(&NginxLimit { rate, burst: 9, nodelay: true, status });
            assert_eq!(send(&nginx, [200, status]), [10, 38]);
            let counts = nginx.wait_for_limit_counts(48);
            assert_eq!(counts, NginxLimitCounts { accepted: 10, delayed: 0, refused: 38 });
        }
    }

    #[test]
    fn nginx_delays_its_burst() {
        let limit =
            NginxLimit { rate: "100r/s".to_string(), burst: 100, nodelay: false, status: 429 };
        let nginx = Nginx::with_limit(&limit);
        assert_eq!(send(&nginx, [200, 429]), [48, 0]);
        let counts = nginx.wait_for_limit_counts(48);
        assert_eq!((counts.accepted, counts.refused), (48, 0));
    }
}
