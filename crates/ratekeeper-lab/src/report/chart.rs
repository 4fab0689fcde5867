//! What a chart shows, without how it is drawn.

use serde::Serialize;

use super::document::{Column, Table};
use super::scale::value_text;

/// Series of numbers over a common horizontal axis.
///
/// As JSON it is what the modules in `web/` draw.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    pub(crate) title: String,
    pub(crate) shape: Shape,
    pub(crate) stacked: bool,
    pub(crate) x: Axis,
    pub(crate) positions: Positions,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) note: Option<String>,
}

/// How series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Shape {
    /// A line through the values.
    Line,
    /// A line, and the area below it.
    Area,
    /// A bar for each value. Over numbers, a bar begins at its position and ends at the next.
    Bars,
}

/// The label of an axis, and what its numbers are.
#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    pub(crate) label: String,
    pub(crate) unit: Unit,
}

/// What a number of an axis is, which decides how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Unit {
    /// A whole number: `1.5k`.
    Count,
    /// A number that can be a fraction.
    Number,
    /// Percent, from 0 to 100.
    Percent,
    /// A duration in microseconds: `1m 30s`.
    Duration,
    /// Microseconds since 1970-01-01 in UTC, written as date and time.
    Time,
}

/// Where the values are on the horizontal axis.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Positions {
    /// In ascending order.
    Values(Vec<f64>),
    Categories(Vec<String>),
}

/// What a series means, which decides its colour in every chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Requests that were admitted.
    Admitted,
    /// Requests that were denied.
    Denied,
    /// Requests that were delayed or queued.
    Delayed,
    /// Requests that a limit in shadow mode would have denied.
    Shadow,
    /// Requests that were sent.
    Offered,
    /// Anything else; colours differ by position.
    Other,
}

/// A named list of values, one for each position. A value that is not finite is a gap.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// As JSON, a gap is `null`.
    pub(crate) values: Vec<f64>,
}

/// A labelled line across a chart, such as a limit or the time of a change.
#[derive(Clone, Debug, Serialize)]
pub struct Mark {
    pub(crate) axis: MarkAxis,
    pub(crate) at: f64,
    pub(crate) label: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MarkAxis {
    X,
    Y,
}

impl Axis {
    /// Creates an axis.
    pub fn new(label: impl Into<String>, unit: Unit) -> Self {
        Self { label: label.into(), unit }
    }
}

impl Series {
    /// Creates a series.
    pub fn new(name: impl Into<String>, role: Role, values: Vec<f64>) -> Self {
        Self { name: name.into(), role, values }
    }

    /// Creates a series of counts.
    pub fn counts(name: impl Into<String>, role: Role, counts: &[u64]) -> Self {
        Self::new(name, role, counts.iter().map(|count| *count as f64).collect())
    }

    /// Returns the value at a position, unless there is a gap.
    pub(crate) fn value(&self, index: usize) -> Option<f64> {
        self.values.get(index).copied().filter(|value| value.is_finite())
    }
}

impl Mark {
    /// Creates a horizontal line at a value.
    pub fn at_value(at: f64, label: impl Into<String>) -> Self {
        Self { axis: MarkAxis::Y, at, label: label.into() }
    }

    /// Creates a vertical line at a position.
    pub fn at_position(at: f64, label: impl Into<String>) -> Self {
        Self { axis: MarkAxis::X, at, label: label.into() }
    }
}

impl Positions {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Values(values) => values.len(),
            Self::Categories(names) => names.len(),
        }
    }
}

impl Chart {
    /// Creates a chart over numbers in ascending order, which are most often times. Its shape is a line.
    pub fn over(title: impl Into<String>, x: Axis, positions: Vec<f64>, y: Axis) -> Self {
        Self::new(title.into(), x, Positions::Values(positions), y, Shape::Line)
    }

    /// Creates a chart of bars, with a position for each name.
    pub fn by_name<S: Into<String>>(
        title: impl Into<String>,
        label: impl Into<String>,
        names: impl IntoIterator<Item = S>,
        y: Axis,
    ) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        let x = Axis::new(label, Unit::Number);
        Self::new(title.into(), x, Positions::Categories(names), y, Shape::Bars)
    }

    fn new(title: String, x: Axis, positions: Positions, y: Axis, shape: Shape) -> Self {
        let (series, marks) = (Vec::new(), Vec::new());
        Self { title, shape, stacked: false, x, positions, y, series, marks, note: None }
    }

    /// Sets how the series are drawn.
    #[must_use]
    pub fn shape(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// Draws the series on top of each other, so that their sum is visible.
    #[must_use]
    pub fn stacked(self) -> Self {
        Self { stacked: true, ..self }
    }

    /// Adds a series.
    #[must_use]
    pub fn series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Adds a line with a label.
    #[must_use]
    pub fn mark(mut self, mark: Mark) -> Self {
        self.marks.push(mark);
        self
    }

    /// Sets a sentence below the chart: what to look at, or what is assumed.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// Returns the values as a table: a row for each position, a column for each series.
    pub(crate) fn to_table(&self) -> Table {
        let first = match self.positions {
            Positions::Values(_) => Column::number(&self.x.label),
            Positions::Categories(_) => Column::text(&self.x.label),
        };
        let columns = self.series.iter().map(|series| Column::number(&series.name));
        let row = |index| {
            let values = self.series.iter().map(move |series| self.value_text(series, index));
            std::iter::once(self.position_text(index)).chain(values)
        };
        let table = Table::new(std::iter::once(first).chain(columns));
        (0..self.positions.len()).fold(table, |table, index| table.row(row(index)))
    }

    fn position_text(&self, index: usize) -> String {
        match &self.positions {
            Positions::Values(values) => value_text(self.x.unit, values[index]),
            Positions::Categories(names) => names[index].clone(),
        }
    }

    fn value_text(&self, series: &Series, index: usize) -> String {
        series.value(index).map_or_else(|| "-".to_string(), |value| value_text(self.y.unit, value))
    }
}
