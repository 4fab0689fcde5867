//! Compiles the protocols of the rate limit services of Envoy and Kuadrant, without a `protoc` to install.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

const ENVOY: &str = "envoy/service/ratelimit/v3/rls.proto";
const KUADRANT: &str = "kuadrant/service/ratelimit/v1/kuadrantrls.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_files([ENVOY, KUADRANT])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // The descriptor set too: reflection serves it, and JSON is parsed by it.
    fs::write(out.join("envoy.bin"), compiler.encode_file_descriptor_set())?;
    let generated = tonic_prost_build::configure().build_transport(false).include_file("envoy.rs");
    generated.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
