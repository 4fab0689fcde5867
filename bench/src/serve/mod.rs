//! The decision server against its peers, for each protocol: one core for the server, one for the load,
//! interleaved. Needs redis-server, nginx, wrk, h2load and throttlecrab-server.

mod loads;
pub mod peers;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prost::Message;

use crate::processes::{
    Folder, Measurement, OTHER_CORE, Process, SERVER_CORE, build, free_port, interleaved, pinned,
    resident_kb, table,
};
use loads::{Commands, Target, h2load, round_robin, wrk, wrk_script};

/// How much is measured.
pub struct Effort {
    rounds: usize,
    seconds: u32,
    requests: usize,
}

pub const FULL: Effort = Effort { rounds: 7, seconds: 3, requests: 300_000 };
pub const QUICK: Effort = Effort { rounds: 3, seconds: 1, requests: 100_000 };

pub fn report(effort: Effort) {
    leave_server_core();
    let (folder, binary) = (Folder::new(), build());
    println!("\n## The server, one worker per listener, on one core\n");
    let ours = Ours::start(&binary, &folder.0);
    let crab = Crab::start();
    resp(&effort, &ours, &crab);
    http(&effort, &ours, &crab, &folder.0);
    grpc(&effort, &ours, &crab, &folder.0);
    drop((ours, crab));
    memory(&binary, &folder.0);
}

/// Moves this process, which generates some of the load, to the other core.
fn leave_server_core() {
    let pid = std::process::id().to_string();
    let moved = Command::new("taskset").args(["-cp", OTHER_CORE, &pid]).output();
    assert!(moved.is_ok_and(|moved| moved.status.success()), "taskset");
}

/// Our server with all listeners.
struct Ours {
    process: Process,
    http: u16,
    resp: u16,
    grpc: u16,
}

impl Ours {
    fn start(binary: &Path, folder: &Path) -> Self {
        let [http, resp, grpc] = [free_port(), free_port(), free_port()];
        let limits = "domain: bench\ndescriptors:\n  - key: user\n    rate_limit: { unit: second, requests_per_unit: 100000000 }\n";
        let config = folder.join("envoy");
        std::fs::create_dir_all(&config).expect("a folder");
        std::fs::write(config.join("limits.yaml"), limits).expect("a file");
        let mut command = pinned(SERVER_CORE, binary);
        command.args(["serve", "--workers", "1", "--admin", "off", "--envoy-config"]).arg(config);
        for (option, port) in [("--http", http), ("--resp", resp), ("--grpc", grpc)] {
            command.args([option, &format!("127.0.0.1:{port}")]);
        }
        let process = Process::start(command.stderr(Stdio::null())).listening_on(grpc);
        Self { process, http, resp, grpc }
    }

    fn at(&self, port: u16) -> Target {
        Target { port, pid: self.process.pid() }
    }
}

/// throttlecrab with all listeners.
struct Crab {
    process: Process,
    http: u16,
    resp: u16,
    grpc: u16,
}

impl Crab {
    fn start() -> Self {
        let program =
            std::env::var_os("THROTTLECRAB").map_or("throttlecrab-server".into(), PathBuf::from);
        let [http, resp, grpc] = [free_port(), free_port(), free_port()];
        let mut command = pinned(SERVER_CORE, program);
        for (listener, port) in [("http", http), ("redis", resp), ("grpc", grpc)] {
            command.args([format!("--{listener}"), format!("--{listener}-port"), port.to_string()]);
            command.args([format!("--{listener}-host"), "127.0.0.1".to_string()]);
        }
        command.args(["--log-level", "error"]).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::start(&mut command);
        Self { process: process.listening_on(http).listening_on(resp), http, resp, grpc }
    }

    fn at(&self, port: u16) -> Target {
        Target { port, pid: self.process.pid() }
    }
}

fn redis() -> (Process, Target) {
    let port = free_port();
    let mut command = pinned(SERVER_CORE, "redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"]);
    let process = Process::start(command.arg(port.to_string()).stdout(Stdio::null()));
    let process = process.listening_on(port);
    let target = Target { port, pid: process.pid() };
    (process, target)
}

fn resp(effort: &Effort, ours: &Ours, crab: &Crab) {
    let (_redis, redis) = redis();
    for (pipeline, more) in [(1, 1), (16, 8)] {
        let requests = effort.requests * more;
        let bench = |target, requests, reply_lines, words: &[&str]| {
            round_robin(target, requests, pipeline, &Commands { words, reply_lines })
        };
        let ping = || bench(redis, requests, 1, &["PING"]);
        let incr = || bench(redis, requests, 1, &["INCR", "KEY"]);
        // With pipelining it is much slower, so it gets fewer requests.
        let crab_requests = if pipeline > 1 { effort.requests / 4 } else { requests };
        let throttle = ["THROTTLE", "KEY", "1000000", "1000000", "1"];
        let crab = || bench(crab.at(crab.resp), crab_requests, 6, &throttle);
        let cell = ["CL.THROTTLE", "KEY", "1000000", "1000000", "1"];
        let own = || bench(ours.at(ours.resp), requests, 6, &cell);
        let seen = interleaved(effort.rounds, &[&ping, &incr, &crab, &own]);
        let rows = [
            ("redis-server, PING", seen[0]),
            ("redis-server, INCR", seen[1]),
            ("throttlecrab", seen[2]),
            ("**ratekeeper**, CL.THROTTLE", seen[3]),
        ];
        table(&format!("Redis' protocol, 50 connections, pipelined by {pipeline}"), &rows);
        compare(&rows);
    }
}

fn http(effort: &Effort, ours: &Ours, crab: &Crab, folder: &Path) {
    let script = |name: &str, body: &str| {
        let file = folder.join(name);
        std::fs::write(&file, wrk_script(body)).expect("a script");
        file
    };
    let check = script("ours.lua", r#"{"key":"user:KEY","rate":"1000000/s burst 1000000"}"#);
    let crab_check = script(
        "crab.lua",
        r#"{"key":"user:KEY","max_burst":1000000,"count_per_period":1000000,"period":1}"#,
    );
    let nginx_port = free_port();
    let nginx = nginx(folder, nginx_port);
    let nginx = Target { port: nginx_port, pid: nginx.pid() };
    let static_response = || wrk(nginx, effort.seconds, &check, "/");
    let crab = || wrk(crab.at(crab.http), effort.seconds, &crab_check, "/throttle");
    let own = || wrk(ours.at(ours.http), effort.seconds, &check, "/v1/check");
    let seen = interleaved(effort.rounds, &[&static_response, &crab, &own]);
    let rows = [
        ("nginx, return 200", seen[0]),
        ("throttlecrab", seen[1]),
        ("**ratekeeper**, /v1/check", seen[2]),
    ];
    table("HTTP, 50 connections", &rows);
    compare(&rows);
}

fn nginx(folder: &Path, port: u16) -> Process {
    let file = folder.join("nginx.conf");
    let text = format!(
        "daemon off; master_process off; pid {0}/nginx.pid; error_log {0}/nginx.err;
         events {{ worker_connections 1024; }}
         http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {0}/body;
           server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"ok\"; }} }} }}",
        folder.display()
    );
    std::fs::write(&file, text).expect("a configuration");
    let mut command = pinned(SERVER_CORE, "nginx");
    command.arg("-c").arg(&file).arg("-p").arg(folder).stderr(Stdio::null());
    Process::start(&mut command).listening_on(port)
}

fn grpc(effort: &Effort, ours: &Ours, crab: &Crab, folder: &Path) {
    let message = |name: &str, bytes: Vec<u8>| {
        let length = u32::try_from(bytes.len()).expect("a short message").to_be_bytes();
        let file = folder.join(name);
        std::fs::write(&file, [&[0], &length[..], &bytes].concat()).expect("a file");
        file
    };
    let check = message("ours.bin", peers::rate_limit_request().encode_to_vec());
    let crab_check = message("crab.bin", peers::throttle_request().encode_to_vec());
    let method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let (empty, limitador) = (peer("empty"), peer("limitador"));
    let crab_method = "/throttlecrab.RateLimiter/Throttle";
    for port in [empty.1.port, limitador.1.port, ours.grpc] {
        peers::assert_envoy_allows(port, method);
    }
    peers::assert_throttlecrab_allows(crab.grpc, crab_method);
    let requests = effort.requests;
    let of_empty = || h2load(empty.1, requests, method, &check);
    let of_limitador = || h2load(limitador.1, requests, method, &check);
    let crab = || h2load(crab.at(crab.grpc), requests, crab_method, &crab_check);
    let own = || h2load(ours.at(ours.grpc), requests, method, &check);
    let seen = interleaved(effort.rounds, &[&of_empty, &crab, &of_limitador, &own]);
    let rows = [
        ("an empty tonic service", seen[0]),
        ("throttlecrab", seen[1]),
        ("limitador's library behind tonic", seen[2]),
        ("**ratekeeper**, Envoy's protocol", seen[3]),
    ];
    println!("(h2load prints means and maxima: they are in the columns p50 and p99.)\n");
    table("gRPC, 10 connections of 10 streams", &rows);
    compare(&rows);
}

fn peer(name: &str) -> (Process, Target) {
    let port = free_port();
    let program = std::env::current_exe().expect("this program");
    let mut command = pinned(SERVER_CORE, program);
    let process = Process::start(command.args(["serve-peer", name, &port.to_string()]));
    let process = process.listening_on(port);
    let target = Target { port, pid: process.pid() };
    (process, target)
}

/// Compares the last row with all others.
fn compare(rows: &[(&str, Measurement)]) {
    let Some(((_, own), others)) = rows.split_last() else { return };
    for (name, other) in others {
        let ratio = own.per_second / other.per_second;
        let by_cpu = other.cpu_us / own.cpu_us;
        println!("- ratekeeper to {name}: {ratio:.2} of its requests a second, {by_cpu:.2} by CPU");
    }
    println!();
}

/// Measures the memory of each server with a million keys.
fn memory(binary: &Path, folder: &Path) {
    const KEYS: usize = 1_000_000;
    println!("Memory with {KEYS} keys:\n\n| | resident MB, new | with the keys |\n|---|---|---|");
    let row = |name: &str, pid: u32, fill: &dyn Fn()| {
        let before = resident_kb(pid) as f64 / 1024.0;
        fill();
        println!("| {name} | {before:.1} | {:.1} |", resident_kb(pid) as f64 / 1024.0);
    };
    let ours = Ours::start(binary, folder);
    let cell = |key: usize| format!("CL.THROTTLE user:{key} 1000 1000 3600\r\n");
    row("**ratekeeper**", ours.process.pid(), &|| loads::fill(ours.resp, KEYS, 64, &cell));
    let crab = Crab::start();
    let throttle = |key: usize| {
        let key = format!("user:{key}");
        let args = ["THROTTLE", &key, "1000", "1000", "3600"];
        let args = args.map(|arg| format!("${}\r\n{arg}\r\n", arg.len())).concat();
        format!("*5\r\n{args}")
    };
    row("throttlecrab", crab.process.pid(), &|| loads::fill(crab.resp, KEYS, 1, &throttle));
    println!();
}
