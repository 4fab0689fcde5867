//! The processes of measured servers, pinned to a core, and their CPU time and memory.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The core of the measured server, and the core of all other processes.
pub const SERVER_CORE: &str = "0";
pub const OTHER_CORE: &str = "1";

const START_WITHIN: Duration = Duration::from_secs(20);

/// Stops when dropped.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Waits until it accepts connections on this port.
    pub fn listening_on(self, port: u16) -> Self {
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < START_WITHIN, "nothing listens on {port}");
            std::thread::sleep(Duration::from_millis(20));
        }
        self
    }

    /// Waits for its first line on standard error, which has to be a pipe.
    pub fn first_line(&mut self) -> String {
        let mut line = String::new();
        let stderr = self.0.stderr.take().expect("a pipe");
        BufReader::new(stderr).read_line(&mut line).expect("a line");
        line
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // nginx stops its worker on SIGTERM, but not on SIGKILL.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

pub fn pinned(core: &str, program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", core]).arg(program.as_ref());
    command
}

/// Returns the CPU time of a process and its children.
pub fn cpu_us(pid: u32) -> u64 {
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

/// Returns the resident memory of a process.
pub fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).expect("a process")
}

/// Builds the server of this tree, and returns its path.
pub fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above");
    let built = Command::new("cargo")
        .args(["build", "--release", "--locked", "-p", "ratekeeper-server"])
        .current_dir(root)
        .status();
    assert!(built.is_ok_and(|status| status.success()), "ratekeeper does not build");
    root.join("target/release/ratekeeper")
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound port").port()
}

/// A folder for configurations, deleted on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("ratekeeper-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for configurations");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Throughput, latency and CPU time of a server under load.
#[derive(Clone, Copy)]
pub struct Measurement {
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub cpu_us: f64,
}

/// Runs all measurements in every round, and returns their medians. The first round is a warm-up.
pub fn interleaved(rounds: usize, measures: &[&dyn Fn() -> Measurement]) -> Vec<Measurement> {
    let mut seen = vec![Vec::new(); measures.len()];
    for round in 0..=rounds {
        for (measure, seen) in measures.iter().zip(&mut seen) {
            eprint!("\rround {round} of {rounds} ");
            let one = measure();
            if round > 0 {
                seen.push(one);
            }
        }
    }
    eprint!("\r                    \r");
    let median = |seen: &[Measurement], of: fn(&Measurement) -> f64| {
        let mut values: Vec<f64> = seen.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let medians = |seen: &Vec<Measurement>| Measurement {
        per_second: median(seen, |seen| seen.per_second),
        p50_us: median(seen, |seen| seen.p50_us),
        p99_us: median(seen, |seen| seen.p99_us),
        cpu_us: median(seen, |seen| seen.cpu_us),
    };
    seen.iter().map(medians).collect()
}

pub fn table(title: &str, rows: &[(&str, Measurement)]) {
    println!("{title}:\n\n| | requests/s | p50 | p99 | CPU µs a request |\n|---|---|---|---|---|");
    for (name, Measurement { per_second, p50_us, p99_us, cpu_us }) in rows {
        println!("| {name} | {per_second:.0} | {p50_us:.0} µs | {p99_us:.0} µs | {cpu_us:.2} |");
    }
    println!();
}

/// Parses a time as load generators print it: `1.25ms`.
pub fn micros(text: &str) -> f64 {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text[..text.len() - unit.len()].parse().expect("a number");
    number
        * match unit {
            "us" => 1.0,
            "ms" => 1e3,
            _ => 1e6,
        }
}

/// Parses the output of wrk, for a server that used this much CPU time.
pub fn read_wrk(text: &str, used_us: f64) -> Measurement {
    assert!(!text.contains("Non-2xx"), "responses other than 200:\n{text}");
    let word_after = |mark: &str| {
        let rest = text.lines().find_map(|line| line.trim().strip_prefix(mark));
        let word = rest.and_then(|rest| rest.split_whitespace().next());
        word.unwrap_or_else(|| panic!("unexpected output of wrk:\n{text}")).to_string()
    };
    // "264000 requests in 3.00s, 90.00MB read"
    let line = text.lines().find(|line| line.contains(" requests in ")).unwrap_or_default();
    let requests = line.split_whitespace().next().unwrap_or_default();
    let requests: f64 = requests.parse().expect("a number");
    Measurement {
        per_second: word_after("Requests/sec:").parse().expect("a number"),
        p50_us: micros(&word_after("50%")),
        p99_us: micros(&word_after("99%")),
        cpu_us: used_us / requests,
    }
}
