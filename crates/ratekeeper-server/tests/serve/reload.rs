//! Configuration files that cannot be used, at the start and while the server runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use ratekeeper_testkit::wait_until;
use tempfile::TempDir;

use crate::client::Client;
use crate::process::{Server, path, run};

const POLICY: &str = "version: 1\nlimits:\n  - { name: one, rate: 5/hour }\n";

/// A file in a folder of its own.
struct Config {
    _folder: TempDir,
    path: PathBuf,
}

impl Config {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        Self { _folder: folder, path }
    }

    /// Puts something in its place, all at once as an editor does.
    fn replace(&self, make: impl FnOnce(&Path)) {
        let next = self.path.with_extension("next");
        make(&next);
        if self.path.is_dir() {
            fs::remove_dir(&self.path).unwrap();
        }
        if next.is_dir() {
            let _ = fs::remove_file(&self.path);
        }
        match next.symlink_metadata() {
            Ok(_) => fs::rename(&next, &self.path).unwrap(),
            Err(_) => fs::remove_file(&self.path).unwrap(),
        }
    }
}

/// Makes something at a path that is no configuration file; and what is said of it.
type Unusable = (fn(&Path), &'static str);

const UNUSABLE: [Unusable; 5] = [
    (make_pipe, "it is a named pipe; use a regular file"),
    (|path| symlink("/dev/zero", path).unwrap(), "it is a device; use a regular file"),
    (|path| fs::create_dir(path).unwrap(), "it is a directory; use a regular file"),
    (make_huge, "KiB, the maximum"),
    (|_| {}, "No such file"),
];

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn make_huge(path: &Path) {
    fs::File::create(path).unwrap().set_len(3 << 30).unwrap();
}

#[test]
fn a_reload_survives_whatever_takes_the_place_of_the_policy() {
    let config = Config::new("policy.yaml");
    fs::write(&config.path, POLICY).unwrap();
    let server = Server::start(&[path(&config.path)]);
    let admin = |target: &str| Client::connect(server.admin()).get(target);
    let is_ok = || admin("/metrics").body.contains("ratekeeper_policy_ok 1\n");
    for (make, says) in UNUSABLE {
        config.replace(make);
        server.signal("-HUP");
        assert_eq!(admin("/healthz").status(), 200);
        wait_until("the reload has failed", || !is_ok());
        let policy = admin("/v1/policy").body;
        assert!(policy.contains(says) && policy.contains("\"name\": \"one\""), "{says}: {policy}");
        let reload = "POST /v1/policy/reload HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(Client::connect(server.admin()).request(reload).status(), 422);
        assert_eq!(admin("/healthz").status(), 200);

        config.replace(|path| fs::write(path, POLICY).unwrap());
        wait_until("it is loaded again", is_ok);
    }
}

#[test]
fn a_start_with_files_that_cannot_be_used_says_so() {
    for (make, says) in UNUSABLE {
        for option in ["policy", "--tokens", "--admin-tokens", "--resp-passwords", "--envoy-config"]
        {
            let config = Config::new("limits.yaml");
            make(&config.path);
            let file = path(&config.path);
            let ended = match option {
                "policy" => run(&[file]),
                // A folder, in which a file that is missing is none at all.
                "--envoy-config" if says.contains("directory") || says.contains("No such") => {
                    continue;
                }
                "--envoy-config" => run(&[option, path(config.path.parent().unwrap())]),
                _ => run(&[option, file]),
            };
            let stderr = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.code() == Some(2) && stderr.contains(says), "{option}: {stderr}");
        }
        let config = Config::new("cert.pem");
        make(&config.path);
        let file = path(&config.path);
        let ended = run(&["--tls-cert", file, "--tls-key", file]);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(2) && stderr.contains(says), "TLS: {stderr}");
    }
}

#[test]
fn a_key_that_is_a_pipe_does_not_hold_up_the_policy_that_names_it() {
    let config = Config::new("policy.yaml");
    make_pipe(&config.path.with_file_name("jwks.json"));
    let jwt = "version: 1\njwt: { jwks_file: jwks.json }\nlimits: []\n";
    fs::write(&config.path, jwt).unwrap();
    let ended = run(&[path(&config.path)]);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(2), "{stderr}");
    assert!(stderr.contains("it is a named pipe; use a regular file"), "{stderr}");
}

#[test]
fn a_signal_without_a_policy_reloads_no_policy() {
    let tokens = Config::new("tokens");
    fs::write(&tokens.path, "alpha\n").unwrap();
    let server = Server::start(&["--tokens", path(&tokens.path)]);
    server.signal("-HUP");
    server.wait_for_log("tokens reloaded");
    let log = server.log();
    assert!(!log.contains("policy reloaded") && !log.contains("WARN"), "{log}");
}

#[test]
fn reloaded_passwords_are_called_passwords() {
    let passwords = Config::new("passwords");
    fs::write(&passwords.path, "alpha\n").unwrap();
    let server = Server::start(&["--resp-passwords", path(&passwords.path)]);
    server.signal("-HUP");
    server.wait_for_log("passwords reloaded");
    fs::write(&passwords.path, "# none of them\n").unwrap();
    server.signal("-HUP");
    server.wait_for_log("passwords not reloaded");
    let log = server.log();
    assert!(log.contains("contains no password; write one on each line"), "{log}");
    assert!(!log.contains("token"), "{log}");
}

#[test]
fn warnings_are_logged_at_the_start_and_at_a_reload() {
    let config = Config::new("policy.yaml");
    fs::write(&config.path, POLICY.replace("rate: 5/hour", "rate: 5/hour, cost: 6")).unwrap();
    let server = Server::start(&[path(&config.path)]);
    server.wait_for_log("a cost of 6 is more than the limit can hold, 5");
    let policy = "version: 1\nlimits:\n  - { name: one, rate: 5/hour, mode: off }\n";
    config.replace(|path| fs::write(path, policy).unwrap());
    server.signal("-HUP");
    server.wait_for_log("\"one\" is off: it does not count requests");
    let log = server.log();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 2, "{log}");
    assert!(warnings[0].contains("line=3 column=38"), "{log}");
}

#[test]
fn fields_that_need_a_response_are_named_at_the_start() {
    let config = Config::new("policy.yaml");
    let limit =
        "name: one, rate: 5/hour, refund: 5xx, cost: { response_header: x-cost, default: 1 }";
    fs::write(&config.path, POLICY.replace("name: one, rate: 5/hour", limit)).unwrap();
    let server = Server::start(&[path(&config.path)]);
    for field in ["field=\"refund\"", "field=\"cost: { response_header }\""] {
        server.wait_for_log(field);
    }
}

#[test]
fn usage_and_fields_of_bodies_are_named_at_the_start() {
    let config = Config::new("policy.yaml");
    let limit =
        "name: one, rate: 5/hour, cost: { usage: openai, estimate: { request_json: max_tokens } }";
    fs::write(&config.path, POLICY.replace("name: one, rate: 5/hour", limit)).unwrap();
    let server = Server::start(&[path(&config.path)]);
    server.wait_for_log("field=\"cost: { usage }\"");
    server.wait_for_log("request_json has no effect here");
}

#[test]
fn a_concurrency_limit_without_effect_is_named_at_the_start_and_at_a_reload() {
    let config = Config::new("policy.yaml");
    fs::write(
        &config.path,
        POLICY.replace("name: one, rate: 5/hour", "name: busy, concurrency: 5"),
    )
    .unwrap();
    let server = Server::start(&[path(&config.path)]);
    server.wait_for_log("a concurrency limit has no effect here");
    assert!(server.log().contains("limit=\"busy\""), "{}", server.log());
    let policy = POLICY.replace("name: one, rate: 5/hour", "name: uploads, concurrency: 2");
    config.replace(|path| fs::write(path, policy).unwrap());
    server.signal("-HUP");
    server.wait_for_log("limit=\"uploads\"");
}
