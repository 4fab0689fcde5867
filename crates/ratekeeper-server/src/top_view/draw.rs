//! Draws the state into a buffer of any size.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Row, Table as TableWidget, Widget};

use super::pane::Pane;
use super::state::State;
use super::table::{Cell, Column, Kind, Sort, Table, Tone};
use super::{summary, time_text};
use crate::terminal::printable;

/// The lines above the table, and the one below.
const HEADER: u16 = 4;
const FOOTER: u16 = 1;
const SPACING: u16 = 2;

/// Whether to use colours. What they say is never only in the colour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) color: bool,
}

impl Look {
    fn tone(self, tone: Tone) -> Style {
        match tone {
            _ if !self.color => Style::new(),
            Tone::Plain => Style::new(),
            Tone::Warning => Style::new().fg(Color::Yellow),
            Tone::Error => Style::new().fg(Color::Red),
        }
    }

    fn alert(self, tone: Tone) -> Style {
        self.tone(tone).add_modifier(Modifier::BOLD)
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Returns how many rows of a table a terminal of this height shows.
pub(super) fn rows_visible(height: u16) -> usize {
    // One line has the titles of the columns.
    usize::from(height.saturating_sub(HEADER + FOOTER + 1))
}

/// Draws a frame.
pub(super) fn draw(state: &State, look: Look, area: Rect, buffer: &mut Buffer) {
    let lines = [Constraint::Length(HEADER), Constraint::Min(0), Constraint::Length(FOOTER)];
    let [header, body, footer] = Layout::vertical(lines).areas(area);
    let header_lines = vec![title(state), rates(state), alert(state, look), tabs(state)];
    Text::from(header_lines).render(header, buffer);
    let table = state.table(state.pane);
    draw_table(&table, state.sort(state.pane), state.scroll, look, body, buffer);
    help(state).render(footer, buffer);
}

fn title(state: &State) -> Line<'static> {
    let name = Span::styled("ratekeeper", BOLD);
    Line::from_iter([name, Span::raw(format!(" {}", summary::server(state)))])
}

fn rates(state: &State) -> Line<'static> {
    let at = time_text(state.reading.status.at_us);
    Line::raw(format!("{}  at {at}", summary::rates(state)))
}

/// Returns what an operator should see first.
fn alert(state: &State, look: Look) -> Line<'static> {
    if let Some(why) = &state.lost {
        let text = format!("no connection, trying again: {}", printable(why));
        return Line::styled(text, look.alert(Tone::Error));
    }
    let Some(first) = state.reading.status.attention.first() else { return Line::default() };
    let tone = if first.urgency == "error" { Tone::Error } else { Tone::Warning };
    let more = match state.reading.status.attention.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more, see {})", Pane::Server.title()),
    };
    let text = format!("{}: {}{more}", first.urgency, first.text);
    Line::styled(printable(&text), look.alert(tone))
}

fn tabs(state: &State) -> Line<'static> {
    let tab = |(i, pane): (usize, &Pane)| {
        let style = if *pane == state.pane { REVERSED } else { Style::new() };
        [Span::styled(format!(" {} {} ", i + 1, pane.title()), style), Span::raw(" ")]
    };
    Pane::ALL.iter().enumerate().flat_map(tab).collect()
}

fn help(state: &State) -> Line<'static> {
    if state.is_editing_filter {
        let text = format!("filter: {}_   Enter keeps it   Esc clears it", state.filter);
        return Line::styled(text, BOLD);
    }
    let mut text = "q quit   Tab pane   / filter".to_string();
    if !state.filter.is_empty() {
        text += &format!(" ({})", state.filter);
    }
    let sorts: Vec<_> = state.pane.columns().iter().filter_map(shortcut).collect();
    if !sorts.is_empty() {
        text += &format!("   sort: {}", sorts.join(" "));
    }
    Line::raw(text)
}

fn shortcut(column: &Column) -> Option<String> {
    let name = column.title.trim_end_matches("/S").to_lowercase();
    column.shortcut.map(|shortcut| format!("{shortcut}={name}"))
}

fn draw_table(
    table: &Table,
    sort: Option<Sort>,
    scroll: usize,
    look: Look,
    area: Rect,
    buffer: &mut Buffer,
) {
    let titles = table.columns.iter().enumerate().map(|(i, column)| {
        let mark = sort.filter(|sort| sort.column == i).map_or("", |sort| mark(column, sort));
        aligned(column, format!("{}{mark}", column.title))
    });
    let visible = usize::from(area.height);
    let rows =
        table.rows.iter().skip(scroll).take(visible).map(|row| {
            let cells = row.iter().zip(table.columns);
            Row::new(cells.map(|(cell, column)| {
                aligned(column, cell.text()).style(style(cell, column, look))
            }))
        });
    let widget = TableWidget::new(rows, constraints(table, area.width))
        .header(Row::new(titles).style(BOLD))
        .column_spacing(SPACING);
    Widget::render(widget, area, buffer);
    if table.rows.is_empty() && area.height > 1 {
        let below = Rect { y: area.y + 1, height: 1, ..area };
        Line::raw(table.empty.clone()).render(below, buffer);
    }
}

fn mark(column: &Column, sort: Sort) -> &'static str {
    match (column.kind == Kind::Number) != sort.is_reversed {
        true => "▼",
        false => "▲",
    }
}

fn style(cell: &Cell, column: &Column, look: Look) -> Style {
    if cell.is_positive() { look.tone(column.tone) } else { Style::new() }
}

fn aligned(column: &Column, text: String) -> Text<'static> {
    match column.kind {
        Kind::Text => Text::raw(text),
        Kind::Number => Text::raw(text).right_aligned(),
    }
}

/// Returns the widths of the columns. Texts get at most a third of the width, and the last column the rest.
fn constraints(table: &Table, width: u16) -> Vec<Constraint> {
    let widths = table.widths();
    let last = widths.len().saturating_sub(1);
    let of = |(i, natural): (usize, usize)| {
        let natural = u16::try_from(natural).unwrap_or(u16::MAX);
        match table.columns[i].kind {
            _ if i == last => Constraint::Fill(1),
            Kind::Text => Constraint::Length(natural.min(width / 3)),
            Kind::Number => Constraint::Length(natural),
        }
    };
    widths.into_iter().enumerate().map(of).collect()
}
