//! Values by what a text begins and ends with.

use std::collections::{BTreeSet, HashMap};

use super::glob::Glob;

/// Values of globs, found by the ends of a text that may match.
#[derive(Clone, Debug)]
pub(crate) struct AffixMap<V>(EndMap<EndMap<V>>);

impl<V> Default for AffixMap<V> {
    fn default() -> Self {
        Self(EndMap::new(Side::Start))
    }
}

impl<V: Default> AffixMap<V> {
    /// The value of all globs that have the ends of this one.
    pub(crate) fn entry(&mut self, glob: &Glob) -> &mut V {
        let (first, last) = glob.ends();
        self.0.entry(first, || EndMap::new(Side::End)).entry(last, V::default)
    }
}

impl<V> AffixMap<V> {
    /// The values of all globs whose ends fit the text.
    pub(crate) fn all_of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = &'a V> {
        self.0.all_of(text).flat_map(|ends| ends.all_of(text))
    }

    /// No less than the sum of `size` over the values that any one text finds.
    pub(super) fn largest_sum(&self, size: &impl Fn(&V) -> usize) -> usize {
        self.0.largest_sum(&|ends| ends.largest_sum(size))
    }
}

/// Finds the values of all texts that a given text begins (or ends) with, in time that does not grow
/// with the number of the others: one lookup for each length there is.
#[derive(Clone, Debug)]
struct EndMap<V> {
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
    /// So many bytes of this side of the text, if it has so many.
    fn of(self, text: &[u8], bytes: usize) -> Option<&[u8]> {
        match self {
            Self::Start => text.get(..bytes),
            Self::End => text.get(text.len().checked_sub(bytes)?..),
        }
    }
}

impl<V> EndMap<V> {
    fn new(side: Side) -> Self {
        Self { side, lengths: BTreeSet::new(), values: HashMap::new() }
    }

    fn entry(&mut self, end: &[u8], or: impl FnOnce() -> V) -> &mut V {
        self.lengths.insert(end.len());
        self.values.entry(end.to_vec()).or_insert_with(or)
    }

    /// The values of all texts that this one begins (or ends) with.
    fn all_of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = &'a V> {
        let ends = self.lengths.range(..=text.len()).filter_map(|len| self.side.of(text, *len));
        ends.filter_map(|end| self.values.get(end))
    }

    /// The largest sum of `size` over the values that any one text finds. Such a text finds the values
    /// of the longest of its ends, and of the ends of that.
    fn largest_sum(&self, size: &impl Fn(&V) -> usize) -> usize {
        let sizes: HashMap<&[u8], usize> =
            self.values.iter().map(|(end, value)| (end.as_slice(), size(value))).collect();
        let sum = |longest: &Vec<u8>| {
            let ends = self.lengths.range(..=longest.len());
            let ends = ends.filter_map(|len| sizes.get(self.side.of(longest, *len)?));
            ends.sum()
        };
        self.values.keys().map(sum).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ends: &EndMap<&'static str>, text: &str) -> Vec<&'static str> {
        ends.all_of(text.as_bytes()).copied().collect()
    }

    fn filled(mut ends: EndMap<&'static str>) -> EndMap<&'static str> {
        for text in ["", "a", "ab", "ba", "abc"] {
            ends.entry(text.as_bytes(), || text);
        }
        ends
    }

    #[test]
    fn all_texts_at_that_end_are_found() {
        let (start, end) = (filled(EndMap::new(Side::Start)), filled(EndMap::new(Side::End)));
        assert_eq!(found(&start, "abcd"), ["", "a", "ab", "abc"]);
        assert_eq!(found(&end, "xba"), ["", "a", "ba"]);
        assert_eq!(found(&end, "b"), [""]);
        assert_eq!(found(&start, ""), [""]);
        assert_eq!(found(&EndMap::new(Side::End), "a"), [] as [&str; 0]);
    }

    #[test]
    fn the_largest_sum_is_that_of_one_text() {
        assert_eq!(filled(EndMap::new(Side::Start)).largest_sum(&|text| text.len()), 1 + 2 + 3);
        assert_eq!(filled(EndMap::new(Side::End)).largest_sum(&|text| text.len()), 3);
        assert_eq!(EndMap::<()>::new(Side::Start).largest_sum(&|()| 1), 0);
    }
}
