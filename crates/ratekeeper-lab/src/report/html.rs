//! A document as one HTML file that needs no network.

use std::fmt::{self, Display, Formatter, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::chart::Chart;
use super::document::{Block, Document, Section, Source, Table};
use super::escape::{Html, json_in_html};
use super::svg::ChartSvg;
use super::web;

impl Document {
    /// Returns the document as one HTML file. It contains all that it needs, and its content security policy
    /// permits nothing else: no requests, and no script but its own.
    #[must_use]
    pub fn to_html(&self) -> String {
        let (style, script) = (web::report_style(), web::report_script());
        let charts: Vec<_> = self.charts().collect();
        let data = serde_json::to_string(&charts).expect("numbers and strings always serialize");
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            hash(&script),
            hash(&style),
            Html(&self.title),
        );
        write!(page, "{}", Body(self)).expect("a string takes all");
        page + "<script type=\"application/json\" id=\"charts\">"
            + &json_in_html(&data)
            + "</script>\n<script type=\"module\">"
            + &script
            + "</script>\n</body>\n</html>\n"
    }
}

/// Returns the hash by which a content security policy permits a script or a style sheet.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

struct Body<'a>(&'a Document);

impl Display for Body<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Document { title, version, command, notes, sections, sources } = self.0;
        writeln!(f, "<main>\n<header>\n<h1>{}</h1>", Html(title))?;
        notes.iter().try_for_each(|note| writeln!(f, "<p class=\"note\">{}</p>", Html(note)))?;
        writeln!(f, "</header>")?;
        let mut charts = 0..;
        for section in sections {
            write_section(section, &mut charts, f)?;
        }
        sources.iter().try_for_each(|source| write_source(source, f))?;
        writeln!(f, "<footer>")?;
        if let Some(command) = command {
            writeln!(f, "<p>Made by this command:</p>\n<pre><code>{}</code></pre>", Html(command))?;
        }
        writeln!(f, "<p>Ratekeeper {version}</p>\n</footer>\n</main>")
    }
}

fn write_section(
    section: &Section,
    charts: &mut impl Iterator<Item = usize>,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    writeln!(f, "<section>")?;
    if !section.heading.is_empty() {
        writeln!(f, "<h2>{}</h2>", Html(&section.heading))?;
    }
    for block in &section.blocks {
        match block {
            Block::Text(text) => writeln!(f, "<p>{}</p>", Html(text))?,
            Block::Facts(facts) => write_facts(facts, f)?,
            Block::Table(table) => write_table(table, f)?,
            Block::Chart(chart) => write_chart(chart, charts.next().unwrap_or(0), f)?,
        }
    }
    writeln!(f, "</section>")
}

fn write_facts(facts: &[(String, String)], f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "<dl class=\"facts\">")?;
    for (label, value) in facts {
        writeln!(f, "<div><dt>{}</dt><dd>{}</dd></div>", Html(label), Html(value))?;
    }
    writeln!(f, "</dl>")
}

fn write_table(table: &Table, f: &mut Formatter<'_>) -> fmt::Result {
    // A table that is wider than the page scrolls, also by keyboard.
    write!(
        f,
        "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"table\"><table><thead><tr>"
    )?;
    let class = |is_number| if is_number { " class=\"number\"" } else { "" };
    for column in &table.columns {
        write!(f, "<th scope=\"col\"{}>{}</th>", class(column.is_number), Html(&column.name))?;
    }
    writeln!(f, "</tr></thead><tbody>")?;
    for row in &table.rows {
        write!(f, "<tr>")?;
        for (cell, column) in row.iter().zip(&table.columns) {
            write!(f, "<td{}>{}</td>", class(column.is_number), Html(cell))?;
        }
        writeln!(f, "</tr>")?;
    }
    writeln!(f, "</tbody></table></div>")?;
    match &table.note {
        Some(note) => writeln!(f, "<p class=\"caption\">{}</p>", Html(note)),
        None => Ok(()),
    }
}

fn write_chart(chart: &Chart, index: usize, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "<figure class=\"chart\" data-chart=\"{index}\">")?;
    writeln!(f, "<figcaption>{}</figcaption>", Html(&chart.title))?;
    writeln!(f, "{}", ChartSvg { chart, index })?;
    writeln!(f, "<details><summary>Data</summary>")?;
    write_table(&chart.to_table(), f)?;
    writeln!(f, "</details>")?;
    if let Some(note) = &chart.note {
        writeln!(f, "<p class=\"caption\">{}</p>", Html(note))?;
    }
    writeln!(f, "</figure>")
}

fn write_source(source: &Source, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "<section>\n<h2>{}</h2>", Html(&source.name))?;
    let text = Html(&source.text);
    writeln!(f, "<pre class=\"source\" tabindex=\"0\"><code>{text}</code></pre>\n</section>")
}
