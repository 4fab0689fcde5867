//! The gateway against nginx with `limit_req`, both in front of the same upstream, one core each, in
//! turn. The upstream and the load share the other core. Needs nginx and wrk.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROXY_CORE: &str = "0";
const OTHER_CORE: &str = "1";

/// How much is measured.
pub struct Effort {
    rounds: usize,
    seconds: u32,
}

pub const FULL: Effort = Effort { rounds: 7, seconds: 3 };
pub const QUICK: Effort = Effort { rounds: 3, seconds: 1 };

pub fn report(effort: Effort) {
    let folder = std::env::temp_dir().join(format!("tollgate-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for configurations");
    let binary = build();
    let ports = [free_port(), free_port(), free_port()];
    let [upstream_port, nginx_port, gateway_port] = ports;
    std::fs::write(folder.join("large"), vec![b'x'; 100_000]).expect("a large answer");
    let _upstream = nginx(&folder, "upstream", OTHER_CORE, &upstream(&folder, upstream_port));
    let nginx = nginx(&folder, "nginx", PROXY_CORE, &peer(&folder, nginx_port, upstream_port));
    let gateway = gateway(&binary, &folder, gateway_port, upstream_port);
    let contenders = [
        ("nginx, limit_req", nginx_port, nginx.pid()),
        ("**tollgate**", gateway_port, gateway.pid()),
    ];
    println!("\n## The gateway, one worker on one core\n");
    let loads = [
        ("13 bytes, 64 connections", "/", 64, false),
        ("100 kB, 32 connections", "/large", 32, false),
        ("a connection for each request", "/", 64, true),
    ];
    for (title, path, connections, is_new) in loads {
        println!(
            "{title}:\n\n| | requests/s | p50 | p99 | CPU µs a request |\n|---|---|---|---|---|"
        );
        let load = Load { path, connections, is_new, seconds: effort.seconds };
        let medians = compare(&contenders, &load, effort.rounds);
        for ((name, ..), seen) in contenders.iter().zip(&medians) {
            let Seen { per_second, p50_us, p99_us, cpu_us } = seen;
            println!(
                "| {name} | {per_second:.0} | {p50_us:.0} µs | {p99_us:.0} µs | {cpu_us:.1} |"
            );
        }
        let ratio = medians[1].per_second / medians[0].per_second;
        let by_cpu = medians[0].cpu_us / medians[1].cpu_us;
        println!("\ntollgate to nginx: {ratio:.2} of its requests a second, {by_cpu:.2} by CPU\n");
    }
    let _ = std::fs::remove_dir_all(folder);
}

struct Load {
    path: &'static str,
    connections: u32,
    is_new: bool,
    seconds: u32,
}

#[derive(Clone, Copy)]
struct Seen {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

fn compare(contenders: &[(&str, u16, u32)], load: &Load, rounds: usize) -> Vec<Seen> {
    let mut seen = vec![Vec::new(); contenders.len()];
    for round in 0..=rounds {
        for ((_, port, pid), seen) in contenders.iter().zip(&mut seen) {
            let one = measure(*port, *pid, load);
            // The first round is for warming up.
            if round > 0 {
                seen.push(one);
            }
        }
    }
    let median = |seen: &[Seen], of: fn(&Seen) -> f64| {
        let mut values: Vec<f64> = seen.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let medians = |seen: &Vec<Seen>| Seen {
        per_second: median(seen, |seen| seen.per_second),
        p50_us: median(seen, |seen| seen.p50_us),
        p99_us: median(seen, |seen| seen.p99_us),
        cpu_us: median(seen, |seen| seen.cpu_us),
    };
    seen.iter().map(medians).collect()
}

fn measure(port: u16, pid: u32, load: &Load) -> Seen {
    let Load { path, connections, is_new, seconds } = load;
    let mut wrk = Command::new("taskset");
    wrk.args(["-c", OTHER_CORE, "wrk", "-t1", "--latency"]);
    wrk.args([format!("-c{connections}"), format!("-d{seconds}s")]);
    if *is_new {
        wrk.args(["-H", "Connection: close"]);
    }
    let before = cpu_us(pid);
    let output = wrk.arg(format!("http://127.0.0.1:{port}{path}")).output().expect("wrk");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("Non-2xx"), "answers other than 200:\n{text}");
    let word_after = |mark: &str| {
        let rest = text.lines().find_map(|line| line.trim().strip_prefix(mark));
        let word = rest.and_then(|rest| rest.split_whitespace().next());
        word.unwrap_or_else(|| panic!("wrk said:\n{text}")).to_string()
    };
    let per_second: f64 = word_after("Requests/sec:").parse().expect("a number");
    let requests = per_second * f64::from(*seconds);
    Seen {
        per_second,
        p50_us: micros(&word_after("50%")),
        p99_us: micros(&word_after("99%")),
        cpu_us: (cpu_us(pid) - before) as f64 / requests,
    }
}

/// As wrk writes it: `1.25ms`.
fn micros(text: &str) -> f64 {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text[..text.len() - unit.len()].parse().expect("a number");
    number
        * match unit {
            "us" => 1.0,
            "ms" => 1e3,
            _ => 1e6,
        }
}

/// What a process and its children have used.
fn cpu_us(pid: u32) -> u64 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    std::iter::once(pid).chain(children).map(ticks).sum::<u64>() * 10_000
}

fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// The gateway of this tree.
fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above");
    let built = Command::new("cargo")
        .args(["build", "--release", "--locked", "-p", "tollgate-server"])
        .current_dir(root)
        .status();
    assert!(built.is_ok_and(|status| status.success()), "the gateway does not build");
    root.join("target/release/tollgate")
}

/// Stops when dropped.
struct Process(Child);

impl Process {
    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // nginx ends its worker only if it is asked.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn pinned(core: &str, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", core]).arg(program).stdin(Stdio::null());
    command
}

fn nginx(folder: &Path, name: &str, core: &str, http: &str) -> Process {
    let file = folder.join(format!("{name}.conf"));
    let text = format!(
        "daemon off; worker_processes 1; pid {0}/{name}.pid; error_log {0}/{name}.err;
         events {{ worker_connections 8192; }}
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 1h; {http} }}",
        folder.display()
    );
    std::fs::write(&file, text).expect("a configuration");
    let mut command = pinned(core, Path::new("nginx"));
    let child = command.arg("-c").arg(&file).arg("-p").arg(folder).stderr(Stdio::null()).spawn();
    let process = Process(child.expect("nginx"));
    let pid = folder.join(format!("{name}.pid"));
    while !pid.exists() {
        std::thread::yield_now();
    }
    process
}

fn upstream(folder: &Path, port: u16) -> String {
    format!(
        "server {{ listen 127.0.0.1:{port} backlog=4096;
           location / {{ default_type text/plain; return 200 \"hello, world\\n\"; }}
           location = /large {{ alias {}/large; }} }}",
        folder.display()
    )
}

/// The same headers as the gateway sets, and a limit that is never met.
fn peer(folder: &Path, port: u16, upstream: u16) -> String {
    format!(
        "limit_req_zone $binary_remote_addr zone=a:10m rate=1000000r/s;
         proxy_temp_path {0}; client_body_temp_path {0};
         upstream u {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 1000000000; }}
         server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
           limit_req zone=a burst=100000 nodelay;
           proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection \"\";
           proxy_set_header Host $host; proxy_set_header X-Forwarded-For $remote_addr;
           proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host;
           proxy_set_header X-Request-Id $request_id; add_header X-Request-Id $request_id; }} }}",
        folder.display()
    )
}

fn gateway(binary: &Path, folder: &Path, port: u16, upstream: u16) -> Process {
    let policy = folder.join("policy.yaml");
    let text = "version: 1\nlimits: [{ name: a, per: ip, rate: 1000000/s burst 100000 }]\n";
    std::fs::write(&policy, text).expect("a policy");
    let mut child = pinned(PROXY_CORE, binary)
        .args(["gateway", "--workers", "1", "--admin", "off"])
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .args(["--upstream", &format!("http://127.0.0.1:{upstream}")])
        .arg(policy)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the gateway");
    let mut line = String::new();
    let stderr = child.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    assert!(line.contains("listening"), "{line}");
    Process(child)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound port").port()
}
