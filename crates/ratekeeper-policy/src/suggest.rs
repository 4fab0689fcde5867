//! What someone who mistyped a word may have meant.

use strsim::damerau_levenshtein;

/// A longer one is no word, and would take long to compare.
const LETTERS_MAX: usize = 100;

/// The word that `word` is most likely a slip of, if any is near enough: a third of its letters
/// may be wrong, or one. Of several equally near ones, the first.
///
/// ```
/// # use ratekeeper_policy::suggest::closest;
/// assert_eq!(closest("algoritm", ["name", "algorithm"].into_iter()), Some("algorithm"));
/// ```
pub fn closest<'a>(word: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let letters = word.chars().count();
    if letters > LETTERS_MAX {
        return None;
    }
    let distance_max = (letters / 3).max(1);
    among
        // Spares the expensive comparison of what is too long or too short anyway.
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
    fn slips_are_recognised() {
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
        fn one_slip_is_forgiven(word in "[a-z]{3,12}", at in 0..12usize, letter in "[a-z]") {
            let at = at % word.len();
            let slipped = [&word[..at], &letter, &word[at + 1..]].concat();
            prop_assert_eq!(closest(&slipped, [word.as_str()].into_iter()), Some(word.as_str()));
        }
    }
}
