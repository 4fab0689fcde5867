//! Traces: what is accepted, and the line and message of errors.

use std::io::Read;

use ratekeeper_lab::{Arrival, Trace, TraceError};

fn read(text: &[u8]) -> Result<Vec<Arrival>, TraceError> {
    Trace::new(text).collect()
}

/// Checks the error of `lines` after a valid header and one valid line.
#[track_caller]
fn rejects(lines: &str, message: &str) {
    rejects_trace(format!("at_us,key,cost\n100,a,1\n{lines}").as_bytes(), message);
}

#[track_caller]
fn rejects_trace(text: &[u8], message: &str) {
    let error = read(text).expect_err("the trace is invalid");
    assert_eq!(error.to_string(), message);
}

#[track_caller]
fn keys(text: &str, expected: &[&str]) {
    let arrivals = read(text.as_bytes()).unwrap();
    assert_eq!(arrivals.iter().map(|arrival| &arrival.key).collect::<Vec<_>>(), expected);
}

#[test]
fn a_key_may_be_any_text() {
    keys(
        "at_us,key,cost\n0,a,1\n0,\"b, \"\"c\"\"\nd\",1\n0,☃,1\n0,,1\n",
        &["a", "b, \"c\"\nd", "☃", ""],
    );
}

#[test]
fn crlf_and_blank_lines_are_accepted() {
    keys("at_us,key,cost\r\n0,a,1\r\n\r\n0,b,1\r\n", &["a", "b"]);
    keys("\u{feff}at_us,key,cost\n\n\n0,a,1", &["a"]);
    keys("at_us,key,cost", &[]);
}

#[test]
fn times_may_be_equal_and_up_to_the_maximum() {
    let arrivals =
        read(b"at_us,key,cost\n7,a,1\n7,a,18446744073709551615\n4503599627370495,a,1\n").unwrap();
    assert_eq!(arrivals.iter().map(|arrival| arrival.at.get()).max(), Some((1 << 52) - 1));
    assert_eq!(arrivals[1].cost.get(), u64::MAX);
}

#[test]
fn an_invalid_header_is_rejected() {
    rejects_trace(
        b"time,key,cost\n0,a,1\n",
        "trace line 1: the header is \"time,key,cost\"; it must be at_us,key,cost",
    );
    rejects_trace(b"0,a,1\n", "trace line 1: the header is \"0,a,1\"; it must be at_us,key,cost");
    rejects_trace(
        b"",
        "trace line 1: the trace is empty; it must begin with the header at_us,key,cost",
    );
}

#[test]
fn invalid_costs_are_rejected() {
    rejects("100,a,0", "trace line 3: cost is 0; a cost must be at least 1");
    rejects("100,a,-2", "trace line 3: cost is \"-2\"; it cannot be negative");
    rejects("100,a,1.5", "trace line 3: cost is \"1.5\"; it must be a whole number");
    rejects("100,a,", "trace line 3: cost is \"\"; it must be a whole number");
    rejects(
        "100,a,18446744073709551616",
        "trace line 3: cost is \"18446744073709551616\"; it is too large",
    );
}

#[test]
fn invalid_times_are_rejected() {
    rejects("soon,a,1", "trace line 3: at_us is \"soon\"; it must be a whole number");
    rejects("+1,a,1", "trace line 3: at_us is \"+1\"; it must be a whole number");
    rejects("-1,a,1", "trace line 3: at_us is \"-1\"; it cannot be negative");
    rejects(
        "100,a,1\n99,a,1",
        "trace line 4: time goes back from 100 to 99; a trace must be sorted by time",
    );
    rejects(
        "4503599627370496,a,1",
        "trace line 3: at_us is 4503599627370496; the latest time is 4503599627370495",
    );
}

#[test]
fn invalid_lines_are_rejected() {
    rejects("100,a", "trace line 3: cost is missing; a line is at_us,key,cost");
    rejects("100", "trace line 3: key is missing; a line is at_us,key,cost");
    rejects(
        "100,a,b,1",
        "trace line 3: there are 4 fields; a line is at_us,key,cost, and a key with commas must be quoted",
    );
    rejects(
        "100,\"a,1\n100,a,1\n",
        "trace line 3: cost is missing; a line is at_us,key,cost; is a quote left open?",
    );
    rejects_trace(b"at_us,key,cost\n0,\xff,1\n", "trace line 2: the key is not valid UTF-8");
}

#[test]
fn an_endless_line_is_rejected_in_bounded_memory() {
    let zeros = std::io::repeat(0);
    let message = "the line is longer than 1 MB; is a quote left open?";
    let error = |input: Box<dyn Read>| Trace::new(input).find_map(Result::err).unwrap();
    assert_eq!(error(Box::new(zeros)).to_string(), format!("trace line 1: {message}"));

    let open = b"at_us,key,cost\n0,a,1\n0,\"b,1\n".as_slice();
    let endless = open.chain(std::io::repeat(b'\n'));
    assert_eq!(error(Box::new(endless)).to_string(), format!("trace line 3: {message}"));

    let long = format!("at_us,key,cost\n0,{},1\n", "k".repeat(1_000_000));
    assert_eq!(read(long.as_bytes()).unwrap()[0].key.len(), 1_000_000);
}

#[test]
fn long_texts_are_shortened_in_messages() {
    let (long, shown) = ("x".repeat(1_000), "x".repeat(60));
    rejects(
        &format!("{long},a,1"),
        &format!("trace line 3: at_us is \"{shown}…\"; it must be a whole number"),
    );
    rejects_trace(
        long.as_bytes(),
        &format!("trace line 1: the header is \"{shown}…\"; it must be at_us,key,cost"),
    );
}

#[test]
fn line_numbers_count_blank_and_quoted_lines() {
    rejects("\n\n100,a,0", "trace line 5: cost is 0; a cost must be at least 1");
    rejects("100,\"b\nc\nd\",1\n100,a,0\n", "trace line 6: cost is 0; a cost must be at least 1");
    rejects("100,\"b\nc\nd\",0\n100,a,1\n", "trace line 3: cost is 0; a cost must be at least 1");
    rejects_trace(
        b"at_us,key,cost\r\n0,a,1\r\n\r\n0,a,0\r\n",
        "trace line 4: cost is 0; a cost must be at least 1",
    );
}

#[test]
fn iteration_ends_after_an_error() {
    let mut trace = Trace::new("at_us,key,cost\n0,a,0\n0,a,1\n".as_bytes());
    assert_eq!(trace.next().unwrap().unwrap_err().line(), 2);
    assert!(trace.next().is_none());
}
