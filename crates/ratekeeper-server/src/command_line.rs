//! The command line of this process as text for a report: ready to run again, without passwords.

use std::borrow::Cow;

/// Returns the command line, quoted for a shell. The program is called by its name, and the password of a URL is
/// replaced by `***`.
pub(crate) fn command_line() -> String {
    let arguments = std::env::args_os().skip(1);
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    text(arguments)
}

fn text(arguments: impl Iterator<Item = String>) -> String {
    arguments.fold("ratekeeper".to_string(), |line, argument| {
        line + " " + &quoted(&without_password(&argument))
    })
}

fn quoted(argument: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.into();
    }
    format!("'{}'", argument.replace('\'', r"'\''")).into()
}

/// Replaces what is between `SCHEME://` and the last `@` of a URL's authority, but for the name of the user.
fn without_password(argument: &str) -> String {
    let Some((scheme, rest)) = argument.split_once("://") else { return argument.to_string() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((user, host)) => {
            let name = user.split_once(':').map_or("", |(name, _)| name);
            format!("{scheme}://{name}:***@{host}{path}")
        }
        None => argument.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arguments: &[&str]) -> String {
        text(arguments.iter().map(|argument| (*argument).to_string()))
    }

    #[test]
    fn arguments_are_quoted_for_a_shell() {
        let arguments = ["simulate", "5/s burst 10", "--trace", "it's.csv", ""];
        assert_eq!(
            line(&arguments),
            r"ratekeeper simulate '5/s burst 10' --trace 'it'\''s.csv' ''"
        );
    }

    #[test]
    fn passwords_are_left_out() {
        let cases = [
            ("redis://user:secret@host:1/0", "ratekeeper 'redis://user:***@host:1/0'"),
            ("--store=redis://:p@ss@host", "ratekeeper '--store=redis://:***@host'"),
            ("rediss://token@host", "ratekeeper 'rediss://:***@host'"),
            ("redis://host:6379", "ratekeeper redis://host:6379"),
        ];
        for (argument, expected) in cases {
            assert_eq!(line(&[argument]), expected);
        }
    }
}
