//! What is shown, and what keys and readings change about it. Nothing here reads, draws or waits.

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::draw;
use super::pane::Pane;
use super::rates::{Rates, rates};
use super::reading::Reading;
use super::table::{Sort, Table};

/// A filter of more characters is no use.
const FILTER_MAX: usize = 80;

/// All that a frame depends on.
pub(super) struct State {
    /// The address of the server.
    pub(super) address: String,
    pub(super) reading: Reading,
    /// By the position of the limit in the reading. None before the second reading.
    pub(super) rates: Vec<Option<Rates>>,
    /// Why the last reading failed.
    pub(super) lost: Option<String>,
    pub(super) pane: Pane,
    /// By pane.
    sorts: [Option<Sort>; Pane::ALL.len()],
    pub(super) filter: String,
    pub(super) is_editing_filter: bool,
    /// The first row that is visible.
    pub(super) scroll: usize,
    /// The height of the terminal.
    height: u16,
}

/// Whether to go on.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Quit,
}

impl State {
    pub(super) fn new(address: String, reading: Reading) -> Self {
        Self {
            address,
            reading,
            rates: Vec::new(),
            lost: None,
            pane: Pane::Limits,
            sorts: Pane::ALL.map(Pane::sort),
            filter: String::new(),
            is_editing_filter: false,
            scroll: 0,
            height: 0,
        }
    }

    /// Shows another reading of the server.
    pub(super) fn update(&mut self, reading: Reading) {
        self.rates = rates(&self.reading.status, &reading.status);
        self.reading = reading;
        self.lost = None;
        self.bound_scroll();
    }

    /// Shows that the server could not be read, and what was read last.
    pub(super) fn lose(&mut self, why: String) {
        self.lost = Some(why);
    }

    /// Adapts to the height of the terminal.
    pub(super) fn resize(&mut self, height: u16) {
        self.height = height;
        self.bound_scroll();
    }

    /// Does what a key says. Other events change nothing.
    pub(super) fn handle(&mut self, event: &Event) -> Flow {
        let flow = match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.press(*key),
            _ => Flow::Continue,
        };
        self.bound_scroll();
        flow
    }

    /// Returns the rows of a pane, filtered and sorted.
    pub(super) fn table(&self, pane: Pane) -> Table {
        let table = pane.table(&self.reading, &self.rates).filtered(&self.filter);
        match self.sort(pane) {
            Some(sort) => table.sorted(sort),
            None => table,
        }
    }

    pub(super) fn sort(&self, pane: Pane) -> Option<Sort> {
        self.sorts[pane as usize]
    }

    fn press(&mut self, key: KeyEvent) -> Flow {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let is_plain = !is_control && !key.modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Char('c') if is_control => return Flow::Quit,
            KeyCode::Char('u') if is_control => self.filter.clear(),
            KeyCode::Char(_) if !is_plain => {}
            code if self.is_editing_filter => self.edit_filter(code),
            KeyCode::Char('q') | KeyCode::Esc => return Flow::Quit,
            KeyCode::Char('/') => self.is_editing_filter = true,
            KeyCode::Tab | KeyCode::Right => self.show(self.pane.plus(1)),
            KeyCode::BackTab | KeyCode::Left => self.show(self.pane.plus(Pane::ALL.len() - 1)),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(self.rows_visible()),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(self.rows_visible()),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = usize::MAX,
            KeyCode::Char(digit @ '1'..='9') => {
                let pane = Pane::ALL.get(digit as usize - '1' as usize);
                self.show(*pane.unwrap_or(&self.pane));
            }
            KeyCode::Char(shortcut) => self.sort_by(shortcut),
            _ => {}
        }
        Flow::Continue
    }

    fn edit_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_editing_filter = false,
            KeyCode::Esc => {
                self.is_editing_filter = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_MAX => {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    fn show(&mut self, pane: Pane) {
        self.pane = pane;
        self.scroll = 0;
    }

    /// Sorts by the column with this shortcut, or reverses the order if it is by that column already.
    fn sort_by(&mut self, shortcut: char) {
        let columns = self.pane.columns();
        let chosen = columns.iter().position(|column| column.shortcut == Some(shortcut));
        let (Some(column), Some(sort)) = (chosen, &mut self.sorts[self.pane as usize]) else {
            return;
        };
        let is_reversed = sort.column == column && !sort.is_reversed;
        *sort = Sort { column, is_reversed };
        self.scroll = 0;
    }

    fn rows_visible(&self) -> usize {
        draw::rows_visible(self.height)
    }

    fn bound_scroll(&mut self) {
        let rows = self.table(self.pane).rows.len();
        self.scroll = self.scroll.min(rows.saturating_sub(self.rows_visible()));
    }
}
