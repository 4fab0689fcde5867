//! The gateway against nginx with `limit_req`, both in front of the same upstream, one core each,
//! interleaved. The upstream and the load share the other core. Needs nginx and wrk.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::processes::{
    Folder, Measurement, OTHER_CORE, Process, SERVER_CORE, build, cpu_us, free_port, interleaved,
    pinned, read_wrk, table,
};

/// How much is measured.
pub struct Effort {
    rounds: usize,
    seconds: u32,
}

pub const FULL: Effort = Effort { rounds: 7, seconds: 3 };
pub const QUICK: Effort = Effort { rounds: 3, seconds: 1 };

pub fn report(effort: Effort) {
    let (folder, binary) = (Folder::new(), build());
    let folder = &folder.0;
    let ports = [free_port(), free_port(), free_port()];
    let [upstream_port, nginx_port, gateway_port] = ports;
    std::fs::write(folder.join("large"), vec![b'x'; 100_000]).expect("a large response");
    let _upstream = nginx(folder, "upstream", OTHER_CORE, &upstream(folder, upstream_port));
    let nginx = nginx(folder, "nginx", SERVER_CORE, &peer(folder, nginx_port, upstream_port));
    let gateway = gateway(&binary, folder, gateway_port, upstream_port);
    println!("\n## The gateway, one worker on one core\n");
    let loads = [
        ("13 bytes, 64 connections", "/", 64, false),
        ("100 kB, 32 connections", "/large", 32, false),
        ("a connection for each request", "/", 64, true),
    ];
    for (title, path, connections, is_new) in loads {
        let load = Load { path, connections, is_new, seconds: effort.seconds };
        let of_nginx = || measure(nginx_port, nginx.pid(), &load);
        let ours = || measure(gateway_port, gateway.pid(), &load);
        let medians = interleaved(effort.rounds, &[&of_nginx, &ours]);
        table(title, &[("nginx, limit_req", medians[0]), ("**ratekeeper**", medians[1])]);
        let ratio = medians[1].per_second / medians[0].per_second;
        let by_cpu = medians[0].cpu_us / medians[1].cpu_us;
        println!("ratekeeper to nginx: {ratio:.2} of its requests a second, {by_cpu:.2} by CPU\n");
    }
}

struct Load {
    path: &'static str,
    connections: u32,
    is_new: bool,
    seconds: u32,
}

fn measure(port: u16, pid: u32, load: &Load) -> Measurement {
    let Load { path, connections, is_new, seconds } = load;
    let mut wrk = Command::new("taskset");
    wrk.args(["-c", OTHER_CORE, "wrk", "-t1", "--latency"]);
    wrk.args([format!("-c{connections}"), format!("-d{seconds}s")]);
    if *is_new {
        wrk.args(["-H", "Connection: close"]);
    }
    let before = cpu_us(pid);
    let output = wrk.arg(format!("http://127.0.0.1:{port}{path}")).output().expect("wrk");
    let used = (cpu_us(pid) - before) as f64;
    read_wrk(&String::from_utf8_lossy(&output.stdout), used)
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
    let mut command = pinned(core, "nginx");
    let command = command.arg("-c").arg(&file).arg("-p").arg(folder).stderr(Stdio::null());
    let process = Process::start(command);
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

/// The same headers as the gateway sets, and a limit that is never reached.
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
    let mut command = pinned(SERVER_CORE, binary);
    command.args(["gateway", "--workers", "1", "--admin", "off"]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.args(["--upstream", &format!("http://127.0.0.1:{upstream}")]).arg(policy);
    let mut process = Process::start(command.stderr(Stdio::piped()));
    let line = process.first_line();
    assert!(line.contains("listening"), "{line}");
    process
}
