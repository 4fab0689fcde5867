//! A table: typed cells that can be sorted and filtered, and their texts.

use std::cmp::Ordering;

/// A column of a table.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// The key that sorts by it.
    pub(super) shortcut: Option<char>,
    pub(super) kind: Kind,
    pub(super) tone: Tone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Aligned to the left, sorted from a to z, filtered.
    Text,
    /// Aligned to the right, sorted from the greatest.
    Number,
}

/// How a number above zero stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Warning,
    Error,
}

/// A value of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    Count(u64),
    /// `None` if it is not known yet.
    PerSecond(Option<f64>),
    Percent(Option<f64>),
}

impl Cell {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::PerSecond(rate) => rate.map_or("-".into(), number),
            Self::Percent(percent) => {
                percent.map_or("-".into(), |percent| format!("{percent:.0}%"))
            }
        }
    }

    /// Whether this is a number above zero.
    pub(super) fn is_positive(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Count(count) => *count > 0,
            Self::PerSecond(number) | Self::Percent(number) => number.is_some_and(|n| n > 0.0),
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.to_lowercase().cmp(&b.to_lowercase()),
            (Self::Count(a), Self::Count(b)) => a.cmp(b),
            (Self::PerSecond(a), Self::PerSecond(b)) | (Self::Percent(a), Self::Percent(b)) => {
                a.unwrap_or(-1.0).total_cmp(&b.unwrap_or(-1.0))
            }
            // The cells of a column are of one kind.
            _ => Ordering::Equal,
        }
    }

    fn contains(&self, lowercase: &str) -> bool {
        matches!(self, Self::Text(text) if text.to_lowercase().contains(lowercase))
    }
}

/// Returns a rate with one decimal, if it is less than 100.
pub(super) fn number(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        ..99.95 => format!("{rate:.1}"),
        _ => format!("{rate:.0}"),
    }
}

/// By which column a table is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_reversed: bool,
}

/// Rows below columns.
pub(super) struct Table {
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Vec<Cell>>,
    /// What to say instead of rows, if there are none.
    pub(super) empty: String,
}

impl Table {
    /// Returns the rows with a text that contains this one, whatever the case.
    pub(super) fn filtered(mut self, filter: &str) -> Self {
        if filter.is_empty() || self.rows.is_empty() {
            return self;
        }
        let lowercase = filter.to_lowercase();
        self.rows.retain(|row| row.iter().any(|cell| cell.contains(&lowercase)));
        self.empty = format!("nothing contains \"{filter}\"");
        self
    }

    /// Returns the rows in this order. Rows that are equal stay in theirs.
    pub(super) fn sorted(mut self, sort: Sort) -> Self {
        let Some(column) = self.columns.get(sort.column) else { return self };
        let is_descending = (column.kind == Kind::Number) != sort.is_reversed;
        self.rows.sort_by(|a, b| {
            let order = a[sort.column].compare(&b[sort.column]);
            if is_descending { order.reverse() } else { order }
        });
        self
    }

    /// Returns the number of terminal columns that each column takes.
    pub(super) fn widths(&self) -> Vec<usize> {
        let width = |text: &str| ratatui::text::Span::raw(text).width();
        let of = |(i, column): (usize, &Column)| {
            let cells = self.rows.iter().map(|row| width(&row[i].text()));
            // A mark of the order follows the title.
            cells.chain([width(column.title) + 1]).max().unwrap_or(0)
        };
        self.columns.iter().enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column { title: "NAME", shortcut: Some('n'), kind: Kind::Text, tone: Tone::Plain },
        Column { title: "RATE", shortcut: Some('r'), kind: Kind::Number, tone: Tone::Plain },
    ];

    fn table() -> Table {
        let row = |name: &str, rate| vec![Cell::Text(name.into()), Cell::PerSecond(rate)];
        let rows = vec![row("b", Some(2.0)), row("C", None), row("a", Some(10.0))];
        Table { columns: COLUMNS, rows, empty: "none".into() }
    }

    fn names(table: &Table) -> String {
        table.rows.iter().map(|row| row[0].text()).collect()
    }

    #[test]
    fn numbers_sort_from_the_greatest_and_texts_from_a() {
        let by = |column, is_reversed| names(&table().sorted(Sort { column, is_reversed }));
        assert_eq!([by(0, false), by(0, true)], ["abC", "Cba"]);
        assert_eq!([by(1, false), by(1, true)], ["abC", "Cba"], "unknown rates are the least");
        assert_eq!(by(9, false), "bCa", "no such column");
    }

    #[test]
    fn a_filter_ignores_case_and_says_when_nothing_is_left() {
        assert_eq!(names(&table().filtered("c")), "C");
        assert_eq!(names(&table().filtered("")), "bCa");
        let none = table().filtered("10");
        assert!(none.rows.is_empty(), "numbers are not searched");
        assert_eq!(none.empty, "nothing contains \"10\"");
    }

    #[test]
    fn rates_have_a_decimal_while_they_are_small() {
        let texts = [0.0, 0.25, 9.96, 99.94, 99.96, 12_345.6].map(number);
        assert_eq!(texts, ["0", "0.2", "10.0", "99.9", "100", "12346"]);
    }
}
