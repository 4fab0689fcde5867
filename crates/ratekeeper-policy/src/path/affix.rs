//! A map from prefix and suffix to values.

use std::collections::{BTreeSet, HashMap};

use super::glob::Glob;

/// A map from globs to values, looked up by a text: finds the globs whose prefix and suffix the text has.
#[derive(Clone, Debug)]
pub(crate) struct AffixMap<V>(OneSideMap<OneSideMap<V>>);

impl<V> Default for AffixMap<V> {
    fn default() -> Self {
        Self(OneSideMap::new(Side::Start))
    }
}

impl<V: Default> AffixMap<V> {
    /// Returns the value of all globs that have the prefix and suffix of this one.
    pub(crate) fn entry(&mut self, glob: &Glob) -> &mut V {
        let (prefix, suffix) = glob.affixes();
        self.0.entry(prefix, || OneSideMap::new(Side::End)).entry(suffix, V::default)
    }
}

impl<V> AffixMap<V> {
    /// Returns the values of all globs whose prefix and suffix the text has.
    pub(crate) fn all_of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = &'a V> {
        self.0.all_of(text).flat_map(|suffixes| suffixes.all_of(text))
    }

    /// Returns an upper bound of the sum of `size` over the values that one text finds.
    pub(super) fn largest_sum(&self, size: &impl Fn(&V) -> usize) -> usize {
        self.0.largest_sum(&|suffixes| suffixes.largest_sum(size))
    }
}

/// A map from affixes to values: finds the values of all prefixes (or suffixes) of a text with one lookup
/// for each length, however many affixes there are.
#[derive(Clone, Debug)]
struct OneSideMap<V> {
    side: Side,
    lengths: BTreeSet<usize>,
    values: HashMap<Vec<u8>, V>,
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Start,
    End,
}

impl Side {
    /// Returns the affix of `text` with this many bytes, if the text is long enough.
    fn of(self, text: &[u8], bytes: usize) -> Option<&[u8]> {
        match self {
            Self::Start => text.get(..bytes),
            Self::End => text.get(text.len().checked_sub(bytes)?..),
        }
    }
}

impl<V> OneSideMap<V> {
    fn new(side: Side) -> Self {
        Self { side, lengths: BTreeSet::new(), values: HashMap::new() }
    }

    fn entry(&mut self, affix: &[u8], or: impl FnOnce() -> V) -> &mut V {
        self.lengths.insert(affix.len());
        self.values.entry(affix.to_vec()).or_insert_with(or)
    }

    /// Returns the values of all affixes that the text has.
    fn all_of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = &'a V> {
        let affixes = self.lengths.range(..=text.len()).filter_map(|len| self.side.of(text, *len));
        affixes.filter_map(|affix| self.values.get(affix))
    }

    /// Returns the largest sum of `size` over the values that one text finds: those of its longest affix
    /// in the map, and of the affixes of that one.
    fn largest_sum(&self, size: &impl Fn(&V) -> usize) -> usize {
        let sizes: HashMap<&[u8], usize> =
            self.values.iter().map(|(affix, value)| (affix.as_slice(), size(value))).collect();
        let sum = |longest: &Vec<u8>| {
            let affixes = self.lengths.range(..=longest.len());
            affixes.filter_map(|len| sizes.get(self.side.of(longest, *len)?)).sum()
        };
        self.values.keys().map(sum).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(map: &OneSideMap<&'static str>, text: &str) -> Vec<&'static str> {
        map.all_of(text.as_bytes()).copied().collect()
    }

    fn filled(mut map: OneSideMap<&'static str>) -> OneSideMap<&'static str> {
        for text in ["", "a", "ab", "ba", "abc"] {
            map.entry(text.as_bytes(), || text);
        }
        map
    }

    #[test]
    fn all_affixes_of_a_text_are_found() {
        let (start, end) =
            (filled(OneSideMap::new(Side::Start)), filled(OneSideMap::new(Side::End)));
        assert_eq!(found(&start, "abcd"), ["", "a", "ab", "abc"]);
        assert_eq!(found(&end, "xba"), ["", "a", "ba"]);
        assert_eq!(found(&end, "b"), [""]);
        assert_eq!(found(&start, ""), [""]);
        assert_eq!(found(&OneSideMap::new(Side::End), "a"), [] as [&str; 0]);
    }

    #[test]
    fn the_largest_sum_is_that_of_one_text() {
        assert_eq!(filled(OneSideMap::new(Side::Start)).largest_sum(&|text| text.len()), 1 + 2 + 3);
        assert_eq!(filled(OneSideMap::new(Side::End)).largest_sum(&|text| text.len()), 3);
        assert_eq!(OneSideMap::<()>::new(Side::Start).largest_sum(&|()| 1), 0);
    }
}
