//! The protocol of Envoy's rate limit service, for peers that speak it.

use std::error::Error;

const PROTO: &str = "../crates/ratekeeper-server/proto";
const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let mut compiler = protox::Compiler::new([PROTO])?;
    compiler.include_imports(true).open_file(SERVICE)?;
    let generated = tonic_prost_build::configure().build_transport(false).include_file("envoy.rs");
    generated.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
