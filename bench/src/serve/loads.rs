//! Load from redis-benchmark, wrk and h2load.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::processes::{OTHER_CORE, Seen, cpu_us, micros, pinned};

/// A server that is asked.
#[derive(Clone, Copy)]
pub struct Target {
    pub port: u16,
    pub pid: u32,
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{output:?}");
    text
}

/// 50 connections that send this many commands, so many at a time.
pub fn redis_benchmark(target: Target, requests: usize, pipeline: u32, command: &[&str]) -> Seen {
    let Target { port, pid } = target;
    let mut program = pinned(OTHER_CORE, "redis-benchmark");
    program.args(["-p", &port.to_string(), "-c", "50", "-n", &requests.to_string()]);
    program.args(["-P", &pipeline.to_string(), "-r", "100000", "--csv"]).args(command);
    let before = cpu_us(pid);
    let text = output(&mut program);
    let cpu_us = (cpu_us(pid) - before) as f64 / requests as f64;
    // "test","rps","avg","min","p50","p95","p99","max", and the name may have quotes in it.
    let last = text.lines().last().unwrap_or_default();
    let fields: Vec<_> = last.trim_matches('"').split("\",\"").collect();
    let field = |from_end: usize| -> f64 {
        let field = fields.len().checked_sub(from_end).map(|i| fields[i]);
        let number = field.and_then(|field| field.parse().ok());
        number.unwrap_or_else(|| panic!("redis-benchmark said:\n{text}"))
    };
    Seen { per_second: field(7), p50_us: field(4) * 1e3, p99_us: field(2) * 1e3, cpu_us }
}

/// 50 connections that post one of a thousand bodies.
pub fn wrk(target: Target, seconds: u32, script: &Path, path: &str) -> Seen {
    let Target { port, pid } = target;
    let mut program = pinned(OTHER_CORE, "wrk");
    program.args(["-t1", "-c50", "--latency", &format!("-d{seconds}s"), "-s"]).arg(script);
    program.arg(format!("http://127.0.0.1:{port}{path}"));
    let before = cpu_us(pid);
    let text = output(&mut program);
    let used = (cpu_us(pid) - before) as f64;
    assert!(!text.contains("Non-2xx"), "answers other than 200:\n{text}");
    let word_after = |mark: &str| {
        let rest = text.lines().find_map(|line| line.trim().strip_prefix(mark));
        let word = rest.and_then(|rest| rest.split_whitespace().next());
        word.unwrap_or_else(|| panic!("wrk said:\n{text}")).to_string()
    };
    let per_second: f64 = word_after("Requests/sec:").parse().expect("a number");
    Seen {
        per_second,
        p50_us: micros(&word_after("50%")),
        p99_us: micros(&word_after("99%")),
        cpu_us: used / (per_second * f64::from(seconds)),
    }
}

/// For wrk: bodies with different keys, `KEY` in them.
pub fn wrk_script(body: &str) -> String {
    let (before, after) = body.split_once("KEY").expect("a place for the key");
    format!(
        "local requests, i = {{}}, 0
         init = function()
           for k = 1, 1000 do
             local body = '{before}' .. (k * 7919) .. '{after}'
             requests[k] = wrk.format('POST', nil, {{ ['content-type'] = 'application/json' }}, body)
           end
         end
         request = function() i = i % 1000 + 1; return requests[i] end"
    )
}

/// 10 connections of 10 streams each.
pub fn h2load(target: Target, requests: usize, method: &str, message: &Path) -> Seen {
    let Target { port, pid } = target;
    let mut program = pinned(OTHER_CORE, "h2load");
    program.args(["-c10", "-m10", "-t1", &format!("-n{requests}"), "-d"]).arg(message);
    program.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
    program.arg(format!("http://127.0.0.1:{port}{method}"));
    let before = cpu_us(pid);
    let text = output(&mut program);
    let used = (cpu_us(pid) - before) as f64;
    let words = |mark: &str| -> Vec<String> {
        let rest = text.lines().find_map(|line| line.trim().strip_prefix(mark));
        let rest = rest.unwrap_or_else(|| panic!("h2load said:\n{text}"));
        rest.split_whitespace().map(|word| word.trim_end_matches(',').to_string()).collect()
    };
    // "finished in 2.5s, 40000.00 req/s, 3.5MB/s" and "requests: 100 total, …, 100 succeeded, …"
    let per_second: f64 = words("finished in")[1].parse().expect("a number");
    assert!(words("requests:").join(" ").contains(&format!("{requests} succeeded")), "{text}");
    // "time for request:  min  max  mean  sd  +/- sd": h2load tells no percentiles.
    let times = words("time for request:");
    Seen {
        per_second,
        p50_us: micros(&times[2]),
        p99_us: micros(&times[1]),
        cpu_us: used / requests as f64,
    }
}

/// Asks about each key once, over several connections, so many questions at a time.
pub fn fill(port: u16, keys: usize, at_once: usize, command: &dyn Fn(usize) -> String) {
    const CONNECTIONS: usize = 50;
    let connect = |_| BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("a server"));
    let mut connections: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    let mut line = String::new();
    for from in (0..keys).step_by(CONNECTIONS * at_once) {
        for (i, connection) in connections.iter_mut().enumerate() {
            let first = from + i * at_once;
            let commands: String = (first..(first + at_once).min(keys)).map(command).collect();
            connection.get_mut().write_all(commands.as_bytes()).expect("it reads");
        }
        for (i, connection) in connections.iter_mut().enumerate() {
            let first = from + i * at_once;
            for _ in first..(first + at_once).min(keys) {
                // An array of five numbers.
                for _ in 0..6 {
                    line.clear();
                    connection.read_line(&mut line).expect("an answer");
                }
            }
        }
    }
}
