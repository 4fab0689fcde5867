//! Suggestions for misspelt words.

use alloc::string::String;
use core::str::Chars;

/// Whether one inserted, deleted or changed character, or two swapped ones, make one word of the other.
pub(crate) fn is_one_edit_apart(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.chars(), other.chars());
    skip_equal(&mut one, &mut other, Iterator::next);
    skip_equal(&mut one, &mut other, DoubleEndedIterator::next_back);
    let (one, other) = (one.as_str(), other.as_str());
    let swapped = |text: &str| text.chars().rev().eq(other.chars());
    match (one.chars().count(), other.chars().count()) {
        (0, 1) | (1, 0 | 1) => true,
        (2, 2) => swapped(one),
        _ => false,
    }
}

fn skip_equal<'a>(
    one: &mut Chars<'a>,
    other: &mut Chars<'a>,
    next: impl Fn(&mut Chars<'a>) -> Option<char>,
) {
    loop {
        let (mut after_one, mut after_other) = (one.clone(), other.clone());
        match (next(&mut after_one), next(&mut after_other)) {
            (Some(a), Some(b)) if a == b => (*one, *other) = (after_one, after_other),
            _ => return,
        }
    }
}

/// Returns words in quotes: `"a", "b" or "c"`.
pub(crate) fn quoted_list(words: &[&str]) -> String {
    let mut list = String::new();
    for (i, word) in words.iter().enumerate() {
        list.push_str(match i {
            0 => "",
            _ if i + 1 == words.len() => " or ",
            _ => ", ",
        });
        list.extend(["\"", word, "\""]);
    }
    list
}
