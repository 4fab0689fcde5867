//! Builds the key of a descriptor from its entries. Different descriptors have different keys.

/// Separators of a key, which are escaped in its parts.
const SPECIAL: [char; 4] = ['\\', '=', '~', ';'];

/// Appends an entry with the value of the request.
pub(super) fn push_value(text: &mut String, key: &str, value: &str) {
    push(text, key, '=', value);
}

/// Appends an entry whose values share one count.
pub(super) fn push_shared(text: &mut String, key: &str, pattern: &str) {
    push(text, key, '~', pattern);
}

fn push(text: &mut String, key: &str, mark: char, value: &str) {
    if !text.is_empty() {
        text.push(';');
    }
    push_escaped(text, key);
    text.push(mark);
    push_escaped(text, value);
}

fn push_escaped(text: &mut String, part: &str) {
    if !part.contains(SPECIAL) {
        return text.push_str(part);
    }
    for c in part.chars() {
        if SPECIAL.contains(&c) {
            text.push('\\');
        }
        text.push(c);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Entries = Vec<(String, String, bool)>;

    fn key_of(entries: &Entries) -> String {
        entries.iter().fold(String::new(), |mut text, (key, value, is_shared)| {
            let push = if *is_shared { push_shared } else { push_value };
            push(&mut text, key, value);
            text
        })
    }

    fn entries() -> impl Strategy<Value = Entries> {
        let part = || "[ab=~;\\\\]{0,3}";
        prop::collection::vec((part(), part(), any::<bool>()), 1..4)
    }

    proptest! {
        #[test]
        fn different_descriptors_have_different_keys(one in entries(), other in entries()) {
            prop_assert_eq!(key_of(&one) == key_of(&other), one == other);
        }
    }
}
