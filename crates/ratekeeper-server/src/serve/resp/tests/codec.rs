//! Parsing and writing, however the input is split.

use proptest::prelude::*;

use crate::serve::resp::codec::{
    ARGS_MAX, BULK_MAX, COMMAND_MAX, INLINE_MAX, Parsed, ProtocolError, ReplyWriter, RespVersion,
    Spans, parse,
};

type Commands = Vec<Vec<Vec<u8>>>;

/// Parses the pieces one after another. Also returns the most bytes that were buffered between them.
fn feed(pieces: &[&[u8]]) -> (Commands, Option<ProtocolError>, usize) {
    let (mut commands, mut spans, mut buffered) = (Vec::new(), Spans::default(), 0);
    let mut input = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match parse(&mut input, &mut spans) {
                Ok(Parsed::Command(len)) => {
                    assert!(0 < len && len <= input.len());
                    let args: Vec<_> = spans.of(&input).from(0).map(<[u8]>::to_vec).collect();
                    if !args.is_empty() {
                        commands.push(args);
                    }
                    input.drain(..len);
                }
                Ok(Parsed::Incomplete) => break,
                Err(error) => return (commands, Some(error), buffered),
            }
        }
        buffered = buffered.max(input.len());
    }
    (commands, None, buffered)
}

fn encode(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = ReplyWriter::new(&mut out, RespVersion::Resp2);
    reply.array(args.len());
    args.iter().for_each(|arg| reply.bulk(arg));
    out
}

fn check(input: &str, commands: &[&[&str]]) {
    let (found, error, _) = feed(&[input.as_bytes()]);
    assert_eq!(error, None, "{input:?}");
    let found: Vec<Vec<_>> = found
        .iter()
        .map(|args| args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect())
        .collect();
    assert_eq!(found, commands, "{input:?}");
}

fn check_error(input: &[u8], message: &str) {
    let (_, error, _) = feed(&[input]);
    let error = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(error.starts_with(message), "{:?}: {error:?}", input.escape_ascii().to_string());
}

#[test]
fn commands_are_arrays_or_inline() {
    check("*1\r\n$4\r\nPING\r\n", &[&["PING"]]);
    check("*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &[&["ECHO", ""]]);
    check("PING\r\nPING\n", &[&["PING"], &["PING"]]);
    check("  ECHO   a  \r\n", &[&["ECHO", "a"]]);
    check("\r\n*0\r\n*-1\r\n\n  \r\nPING\r\n", &[&["PING"]]);
    check("*1\r\n$4\r\nPING\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n", &[&["PING"], &["PING"], &["QUIT"]]);
    check("*1\r\n$4\r\nPI", &[]);
    check("*1\r\n$4\r\nPING", &[]);
    check("PING", &[]);
}

#[test]
fn inline_commands_may_have_quotes() {
    check("ECHO \"a b\" 'c d'\r\n", &[&["ECHO", "a b", "c d"]]);
    check(r#"ECHO "\x41\n\"\q\xZZ" '\n\''"#, &[]);
    check("ECHO \"\\x41\\n\\\"\\q\\xZZ\" '\\n\\''\n", &[&["ECHO", "A\n\"qxZZ", "\\n'"]]);
    check("ECHO \"\" ab\"cd\"\n", &[&["ECHO", "", "abcd"]]);
    check_error(b"ECHO \"a\r\n", "unbalanced quotes");
    check_error(b"ECHO 'a\r\n", "unbalanced quotes");
    check_error(b"ECHO \"a\"b\r\n", "unbalanced quotes");
}

#[test]
fn invalid_input_is_a_protocol_error() {
    check_error(b"*x\r\n", "invalid multibulk length");
    check_error(b"*65\r\n", "invalid multibulk length");
    check_error(b"*99999999999999999999\r\n", "invalid multibulk length");
    check_error(b"*1\r\nPING\r\n", "expected '$', got 'P'");
    check_error(b"*1\r\n$-1\r\n", "invalid bulk length");
    check_error(b"*1\r\n$65537\r\n", "invalid bulk length");
    check_error(b"*1\r\n$4\r\nPINGxx", "expected CRLF");
    check_error(&[b'*'; 40], "too big mbulk count string");
    check_error(&[&b"*1\r\n$"[..], &[b'1'; 40]].concat(), "too big bulk count string");
    check_error(&[b'a'; INLINE_MAX], "too big inline request");
    check_error(&[b"a ".repeat(ARGS_MAX + 1), b"\n".to_vec()].concat(), "too many arguments");
}

#[test]
fn the_bounds_are_inclusive() {
    let arg = vec![b'a'; BULK_MAX];
    assert_eq!(feed(&[&encode(std::slice::from_ref(&arg))]).0, [[arg.clone()]]);
    let many = vec![b"a".to_vec(); ARGS_MAX];
    assert_eq!(feed(&[&encode(&many)]).0, [many]);
    let (_, error, buffered) = feed(&[&encode(&[arg.clone(), arg.clone(), arg])[..COMMAND_MAX]]);
    assert_eq!(error, Some(ProtocolError::CommandTooLong));
    assert!(buffered <= COMMAND_MAX);
}

#[test]
fn replies_are_written_in_both_versions() {
    let write = |protocol| {
        let mut out = Vec::new();
        let mut reply = ReplyWriter::new(&mut out, protocol);
        reply.map(1);
        reply.text("a");
        reply.boolean(true);
        reply.null();
        reply.integer(i64::MIN);
        reply.count(u64::MAX);
        reply.error("ERR two\r\nlines");
        String::from_utf8(out).unwrap()
    };
    let numbers = ":-9223372036854775808\r\n:9223372036854775807\r\n-ERR two  lines\r\n";
    assert_eq!(write(RespVersion::Resp2), format!("*2\r\n$1\r\na\r\n:1\r\n$-1\r\n{numbers}"));
    assert_eq!(write(RespVersion::Resp3), format!("%1\r\n$1\r\na\r\n#t\r\n_\r\n{numbers}"));
}

fn any_command() -> impl Strategy<Value = Vec<u8>> {
    let arg = prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        prop::collection::vec(arg, 1..6).prop_map(|args| encode(&args)),
        "[a-z]{1,5}( [a-z]{1,5}){0,4}\r?\n".prop_map(String::into_bytes),
        "[a-z]{1,5} \"[a-z\\\\ ]{0,5}[a-z]\"\r\n".prop_map(String::into_bytes),
    ]
}

/// Bytes that resemble requests more often than random ones do.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => any_command(),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => "[*$][-0-9]{0,12}(\r\n)?".prop_map(String::into_bytes),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_split_of_the_input_gives_the_same_commands(
        bytes in any_bytes(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        let (whole, split) = (feed(&[&bytes]), feed(&pieces));
        prop_assert_eq!(&whole.0, &split.0);
        prop_assert_eq!(whole.1, split.1);
    }

    #[test]
    fn single_bytes_give_the_same_commands(bytes in any_bytes()) {
        let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
        let (whole, split) = (feed(&[&bytes]), feed(&pieces));
        prop_assert_eq!((whole.0, whole.1), (split.0, split.1));
    }

    #[test]
    fn encoded_commands_are_parsed_back(
        args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..=ARGS_MAX),
    ) {
        prop_assert_eq!(feed(&[&encode(&args)]).0, [args]);
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..5_000)) {
        feed(&[&bytes]);
    }

    #[test]
    fn the_input_buffer_is_bounded(
        start in "[*$a-z][0-9]{1,3}\r\n[$][0-9]{1,5}\r\n",
        filler in any::<u8>(),
    ) {
        let filler = vec![filler; 1000];
        let mut pieces = vec![start.as_bytes()];
        pieces.resize(1000, &filler);
        prop_assert!(feed(&pieces).2 <= COMMAND_MAX + filler.len());
    }
}
