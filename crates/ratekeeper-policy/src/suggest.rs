//! Suggestions for misspelled words.

use strsim::damerau_levenshtein;

/// Longer words get no suggestion, which bounds the time of a comparison.
const LETTERS_MAX: usize = 100;

/// Returns the candidate with the smallest edit distance to `word`, if at most a third of its letters,
/// or one, differ. Of several equally close ones, the first.
///
/// ```
/// # use ratekeeper_policy::suggest::closest;
/// assert_eq!(closest("algoritm", ["name", "algorithm"].into_iter()), Some("algorithm"));
/// ```
#[must_use]
pub fn closest<'a>(word: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let letters = word.chars().count();
    if letters > LETTERS_MAX {
        return None;
    }
    let distance_max = (letters / 3).max(1);
    among
        // Skips the expensive comparison if the lengths differ too much.
        .filter(|known| known.chars().count().abs_diff(letters) <= distance_max)
        .map(|known| (damerau_levenshtein(word, known), known))
        .filter(|(distance, known)| *distance <= distance_max && *distance < known.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORDS: [&str; 6] = ["limit", "limits", "burst", "key", "ip", "cost"];

    fn check(word: &str, meant: Option<&str>) {
        assert_eq!(closest(word, WORDS.into_iter()), meant, "{word}");
    }

    #[test]
    fn misspellings_are_recognised() {
        check("limt", Some("limit"));
        check("lmiits", Some("limits"));
        check("limit", Some("limit"));
        check("brust", Some("burst"));
        check("kye", Some("key"));
        check("pi", Some("ip"));
        check("costs", Some("cost"));
        check("bürst", Some("burst"));
    }

    #[test]
    fn other_words_are_not() {
        check("window", None);
        check("queue", None);
        check("", None);
        check("x", None);
        check("Limit Exceeded", None);
        assert_eq!(closest("a", std::iter::empty()), None);
        assert_eq!(closest("x", ["y"].into_iter()), None);
    }

    proptest! {
        #[test]
        fn a_known_word_is_its_own_suggestion(words in prop::collection::vec(".{1,8}", 1..5)) {
            let found = closest(&words[0], words.iter().map(String::as_str));
            prop_assert_eq!(found, Some(words[0].as_str()));
        }

        #[test]
        fn one_wrong_letter_is_recognised(word in "[a-z]{3,12}", at in 0..12usize, letter in "[a-z]") {
            let at = at % word.len();
            let slipped = [&word[..at], &letter, &word[at + 1..]].concat();
            prop_assert_eq!(closest(&slipped, [word.as_str()].into_iter()), Some(word.as_str()));
        }
    }
}
