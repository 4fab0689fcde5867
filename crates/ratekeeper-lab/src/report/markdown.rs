//! A document as Markdown, for a pull request or an issue. A chart is a table that unfolds.

use std::fmt::{self, Display, Formatter};

use super::document::{Block, Document, Source, Table};
use super::escape::{Html, Markdown};

impl Document {
    /// Returns the document as Markdown with tables.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        Page(self).to_string()
    }
}

struct Page<'a>(&'a Document);

impl Display for Page<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Document { title, version, command, notes, sections, sources } = self.0;
        writeln!(f, "# {}", Markdown(title))?;
        notes.iter().try_for_each(|note| writeln!(f, "\nNote: {}", Markdown(note)))?;
        for section in sections {
            if !section.heading.is_empty() {
                writeln!(f, "\n## {}", Markdown(&section.heading))?;
            }
            section.blocks.iter().try_for_each(|block| write_block(block, f))?;
        }
        sources.iter().try_for_each(|source| write_source(source, f))?;
        if let Some(command) = command {
            writeln!(f, "\nMade by this command:\n\n{}", Fence(command))?;
        }
        writeln!(f, "\nRatekeeper {version}")
    }
}

fn write_block(block: &Block, f: &mut Formatter<'_>) -> fmt::Result {
    match block {
        Block::Text(text) => writeln!(f, "\n{}", Markdown(text)),
        Block::Facts(facts) => {
            writeln!(f)?;
            let mut facts = facts.iter();
            facts.try_for_each(|(label, value)| {
                writeln!(f, "- {}: {}", Markdown(label), Markdown(value))
            })
        }
        Block::Table(table) => write_table(table, f),
        Block::Chart(chart) => {
            writeln!(f, "\n<details><summary>{}</summary>", Html(&chart.title))?;
            writeln!(f, "\n{}", Markdown(&chart.y.label))?;
            write_table(&chart.to_table(), f)?;
            if let Some(note) = &chart.note {
                writeln!(f, "\n{}", Markdown(note))?;
            }
            writeln!(f, "\n</details>")
        }
    }
}

fn write_table(table: &Table, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f)?;
    let names = table.columns.iter().map(|column| Markdown(&column.name).to_string());
    write_row(names, f)?;
    let rules = table.columns.iter().map(|column| if column.is_number { "--:" } else { "---" });
    write_row(rules, f)?;
    for row in &table.rows {
        write_row(row.iter().map(|cell| Markdown(cell)), f)?;
    }
    match &table.note {
        Some(note) => writeln!(f, "\n{}", Markdown(note)),
        None => Ok(()),
    }
}

fn write_row(cells: impl Iterator<Item = impl Display>, f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str("|")?;
    for cell in cells {
        write!(f, " {cell} |")?;
    }
    writeln!(f)
}

fn write_source(source: &Source, f: &mut Formatter<'_>) -> fmt::Result {
    let (name, text) = (Html(&source.name), Fence(&source.text));
    writeln!(f, "\n<details><summary>{name}</summary>\n\n{text}\n\n</details>")
}

/// A block of code that its text cannot end.
struct Fence<'a>(&'a str);

impl Display for Fence<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let longest = self.0.split(|c| c != '`').map(str::len).max().unwrap_or(0);
        let fence = "`".repeat(longest.max(2) + 1);
        write!(f, "{fence}text\n{}\n{fence}", self.0.trim_end_matches('\n'))
    }
}
