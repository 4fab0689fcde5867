//! The content of a report, in the order of reading.

use serde::Serialize;

use super::chart::Chart;

/// A report.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    pub(crate) title: String,
    pub(crate) version: &'static str,
    pub(crate) command: Option<String>,
    pub(crate) notes: Vec<String>,
    pub(crate) sections: Vec<Section>,
    pub(crate) sources: Vec<Source>,
}

/// A text that a report is about, such as a policy.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A part of a document with a heading.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    pub(crate) heading: String,
    pub(crate) blocks: Vec<Block>,
}

/// A part of a section.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// A few numbers that matter most: labels and values.
    Facts(Vec<(String, String)>),
    /// A table.
    Table(Table),
    /// A chart.
    Chart(Chart),
}

/// Rows of text under named columns.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) note: Option<String>,
}

/// The name of a column of a table, and how its cells are aligned.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    pub(crate) name: String,
    pub(crate) is_number: bool,
}

impl Column {
    /// Creates a column of text, aligned to the left.
    pub fn text(name: impl Into<String>) -> Self {
        Self { name: name.into(), is_number: false }
    }

    /// Creates a column of numbers, aligned to the right.
    pub fn number(name: impl Into<String>) -> Self {
        Self { name: name.into(), is_number: true }
    }
}

impl Table {
    /// Creates a table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new(), note: None }
    }

    /// Adds a row. A cell that it lacks is empty; one without a column is dropped.
    #[must_use]
    pub fn row<S: Into<String>>(mut self, cells: impl IntoIterator<Item = S>) -> Self {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
        self
    }

    /// Sets a sentence below the table.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }
}

impl Section {
    /// Creates a section. An empty heading is omitted.
    pub fn new(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), blocks: Vec::new() }
    }

    /// Adds a paragraph.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.block(Block::Text(text.into()))
    }

    /// Adds numbers with labels.
    #[must_use]
    pub fn facts<L: Into<String>, V: Into<String>>(
        self,
        facts: impl IntoIterator<Item = (L, V)>,
    ) -> Self {
        let facts = facts.into_iter().map(|(label, value)| (label.into(), value.into()));
        self.block(Block::Facts(facts.collect()))
    }

    /// Adds a table.
    #[must_use]
    pub fn table(self, table: Table) -> Self {
        self.block(Block::Table(table))
    }

    /// Adds a chart.
    #[must_use]
    pub fn chart(self, chart: Chart) -> Self {
        self.block(Block::Chart(chart))
    }

    /// Adds a block.
    #[must_use]
    pub fn block(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }
}

impl Document {
    /// Creates a document. It names the version of this program.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            version: env!("CARGO_PKG_VERSION"),
            command: None,
            notes: Vec::new(),
            sections: Vec::new(),
            sources: Vec::new(),
        }
    }

    /// Sets the command line that made it. It must not contain secrets.
    #[must_use]
    pub fn command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }

    /// Adds a sentence that the reader needs to know first.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds a section.
    #[must_use]
    pub fn section(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }

    /// Adds a file that the report is about, such as the policy, at the end.
    #[must_use]
    pub fn source(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.sources.push(Source { name: name.into(), text: text.into() });
        self
    }

    /// Returns all charts, in order.
    pub(crate) fn charts(&self) -> impl Iterator<Item = &Chart> {
        self.sections.iter().flat_map(|section| &section.blocks).filter_map(|block| match block {
            Block::Chart(chart) => Some(chart),
            _ => None,
        })
    }
}
