//! Load generators: RESP from this process, and wrk and h2load.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::processes::{Measurement, OTHER_CORE, cpu_us, micros, pinned, read_wrk};

/// A measured server.
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

/// A RESP command, and the number of lines of its reply.
pub struct Commands<'a> {
    pub words: &'a [&'a str],
    pub reply_lines: usize,
}

/// Connections used round robin: read the replies to the last commands, send the next ones. That is
/// cheaper than `redis-benchmark`, which takes as long for a request as the servers do.
const CONNECTIONS: usize = 50;
/// Commands are prepared with random keys out of a hundred thousand.
const PREPARED: usize = 8_192;

pub fn round_robin(
    target: Target,
    requests: usize,
    pipeline: usize,
    commands: &Commands<'_>,
) -> Measurement {
    let Target { port, pid } = target;
    let prepared = prepare(commands.words, pipeline);
    let connect = |_| {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a server");
        stream.set_nodelay(true).expect("a socket");
        stream
    };
    let mut connections: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    let (mut sent, mut times) = (vec![None; CONNECTIONS], Vec::new());
    let mut buffer = [0; 64 << 10];
    let (started, before) = (Instant::now(), cpu_us(pid));
    for i in 0..requests / pipeline {
        let at = i % CONNECTIONS;
        if let Some(since) = sent[at].replace(Instant::now()) {
            take(&mut connections[at], commands.reply_lines * pipeline, &mut buffer);
            times.push(Instant::now().duration_since(since));
            sent[at] = Some(Instant::now());
        }
        let bytes = &prepared[i % prepared.len()];
        connections[at].write_all(bytes).expect("it reads");
    }
    for connection in &mut connections {
        take(connection, commands.reply_lines * pipeline, &mut buffer);
    }
    let (took, used) = (started.elapsed(), cpu_us(pid) - before);
    times.sort_unstable();
    let percentile = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
    Measurement {
        per_second: requests as f64 / took.as_secs_f64(),
        p50_us: percentile(50),
        p99_us: percentile(99),
        cpu_us: used as f64 / requests as f64,
    }
}

fn prepare(words: &[&str], pipeline: usize) -> Vec<Vec<u8>> {
    let mut seed = 1_u64;
    let mut command = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = format!("key:{}", (seed >> 33) % 100_000);
        let words = words.iter().map(|word| if *word == "KEY" { &key } else { *word });
        let words: Vec<_> = words.map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
    };
    (0..PREPARED).map(|_| (0..pipeline).flat_map(|_| command()).collect()).collect()
}

/// Reads this many lines.
fn take(connection: &mut TcpStream, lines: usize, buffer: &mut [u8]) {
    let mut left = lines;
    while left > 0 {
        let len = connection.read(buffer).expect("a reply");
        assert!(len > 0, "the server has closed the connection");
        left -= buffer[..len].iter().filter(|byte| **byte == b'\n').count();
    }
}

/// 50 connections that post one of a thousand bodies.
pub fn wrk(target: Target, seconds: u32, script: &Path, path: &str) -> Measurement {
    let Target { port, pid } = target;
    let mut program = pinned(OTHER_CORE, "wrk");
    program.args(["-t1", "-c50", "--latency", &format!("-d{seconds}s"), "-s"]).arg(script);
    program.arg(format!("http://127.0.0.1:{port}{path}"));
    let before = cpu_us(pid);
    let text = output(&mut program);
    let used = (cpu_us(pid) - before) as f64;
    read_wrk(&text, used)
}

/// Returns a wrk script whose bodies have different keys in the place of `KEY`.
pub fn wrk_script(body: &str) -> String {
    let (before, after) = body.split_once("KEY").expect("KEY in the body");
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
pub fn h2load(target: Target, requests: usize, method: &str, message: &Path) -> Measurement {
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
        let rest = rest.unwrap_or_else(|| panic!("unexpected output of h2load:\n{text}"));
        rest.split_whitespace().map(|word| word.trim_end_matches(',').to_string()).collect()
    };
    // "finished in 2.5s, 40000.00 req/s, 3.5MB/s" and "requests: 100 total, …, 100 succeeded, …"
    let per_second: f64 = words("finished in")[1].parse().expect("a number");
    assert!(words("requests:").join(" ").contains(&format!("{requests} succeeded")), "{text}");
    // "time for request:  min  max  mean  sd  +/- sd": h2load prints no percentiles.
    let times = words("time for request:");
    Measurement {
        per_second,
        p50_us: micros(&times[2]),
        p99_us: micros(&times[1]),
        cpu_us: used / requests as f64,
    }
}

/// Sends a command for each key once, over several connections, with this many in a pipeline.
pub fn fill(port: u16, keys: usize, pipeline: usize, command: &dyn Fn(usize) -> String) {
    let connect = |_| BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("a server"));
    let mut connections: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    let mut line = String::new();
    for from in (0..keys).step_by(CONNECTIONS * pipeline) {
        for (i, connection) in connections.iter_mut().enumerate() {
            let first = from + i * pipeline;
            let commands: String = (first..(first + pipeline).min(keys)).map(command).collect();
            connection.get_mut().write_all(commands.as_bytes()).expect("it reads");
        }
        for (i, connection) in connections.iter_mut().enumerate() {
            let first = from + i * pipeline;
            for _ in first..(first + pipeline).min(keys) {
                // An array of five numbers.
                for _ in 0..6 {
                    line.clear();
                    connection.read_line(&mut line).expect("a reply");
                }
            }
        }
    }
}
