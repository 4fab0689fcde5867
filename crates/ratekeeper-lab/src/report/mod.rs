//! Reports for people: a document of sections, tables and charts, written as HTML, SVG or Markdown.
//!
//! A [`Document`] says what ran (command line, version, policy) and what came out. [`Document::to_html`] is one file
//! that needs no network: it contains its style, its script and its data. Text of a document may contain anything: it
//! is shown as text, never as markup.
//!
//! ```
//! use ratekeeper_lab::report::{Axis, Chart, Column, Document, Role, Section, Series, Shape, Table, Unit};
//!
//! let rate = Axis::new("requests per second", Unit::Count);
//! let chart = Chart::over("Requests", Axis::new("time", Unit::Duration), vec![0.0, 1e6, 2e6], rate)
//!     .shape(Shape::Bars)
//!     .stacked()
//!     .series(Series::new("admitted", Role::Admitted, vec![10.0, 10.0, 10.0]))
//!     .series(Series::new("denied", Role::Denied, vec![0.0, 4.0, 2.0]));
//! let table = Table::new([Column::text("limit"), Column::number("denied")]).row(["10/s", "6"]);
//! let section = Section::new("Result").table(table).chart(chart);
//! let document = Document::new("What 10/s does").section(section);
//!
//! assert!(document.to_html().starts_with("<!doctype html>"));
//! assert!(document.to_markdown().starts_with("# What 10/s does\n"));
//! ```

mod chart;
mod document;
mod escape;
mod html;
mod markdown;
mod scale;
mod svg;
pub mod web;

pub use chart::{Axis, Chart, Mark, Role, Series, Shape, Unit};
pub use document::{Block, Column, Document, Section, Table};
