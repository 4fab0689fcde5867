#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ratekeeper_server::fuzzing::usage(bytes));
