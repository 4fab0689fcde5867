//! Formats replies as text.

/// Returns the first reply in one line, and the bytes after it.
pub(super) fn read(bytes: &[u8]) -> (String, &[u8]) {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n").expect("a complete reply");
    let (line, rest) = (std::str::from_utf8(&bytes[1..end]).unwrap(), &bytes[end + 2..]);
    match bytes[0] {
        b'+' | b'-' | b':' | b'#' => (line.to_string(), rest),
        b'_' => ("null".to_string(), rest),
        b'$' if line == "-1" => ("null".to_string(), rest),
        b'$' => {
            let len: usize = line.parse().unwrap();
            assert_eq!(&rest[len..len + 2], b"\r\n");
            (String::from_utf8_lossy(&rest[..len]).into_owned(), &rest[len + 2..])
        }
        b'*' => read_array(rest, line.parse().unwrap(), "[]"),
        b'%' => read_array(rest, 2 * line.parse::<usize>().unwrap(), "{}"),
        other => panic!("no reply begins with {:?}", char::from(other)),
    }
}

fn read_array<'a>(mut rest: &'a [u8], len: usize, brackets: &str) -> (String, &'a [u8]) {
    let mut texts = Vec::new();
    for _ in 0..len {
        let (text, after) = read(rest);
        texts.push(text);
        rest = after;
    }
    (format!("{}{}{}", &brackets[..1], texts.join(" "), &brackets[1..]), rest)
}

/// Returns all replies, one per line.
pub(super) fn read_all(mut bytes: &[u8]) -> Vec<String> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let (reply, rest) = read(bytes);
        replies.push(reply);
        bytes = rest;
    }
    replies
}
