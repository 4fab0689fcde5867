//! Lines of characters with colours.

use anstyle::{AnsiColor, Style};

/// What a character shows, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Text,
    Heading,
    Axis,
    Admitted,
    Denied,
    Released,
}

impl Ink {
    fn style(self) -> Style {
        match self {
            Self::Text => Style::new(),
            Self::Heading => Style::new().bold(),
            Self::Axis => Style::new().dimmed(),
            Self::Admitted => AnsiColor::Green.on_default(),
            Self::Denied => AnsiColor::Red.on_default(),
            Self::Released => AnsiColor::Cyan.on_default(),
        }
    }
}

/// A character and what it shows.
pub(crate) type Cell = (char, Ink);

/// Returns the cells of a text.
pub(crate) fn cells(text: &str, ink: Ink) -> impl Iterator<Item = Cell> {
    text.chars().map(move |c| (c, ink))
}

/// Returns a line that is a heading.
pub(crate) fn heading(text: &str, has_color: bool) -> String {
    let mut canvas = Canvas::new(has_color);
    canvas.line(cells(text, Ink::Heading));
    canvas.into_text()
}

/// Text that grows by lines, with escape codes only if it has colour.
pub(crate) struct Canvas {
    has_color: bool,
    text: String,
}

impl Canvas {
    pub(crate) fn new(has_color: bool) -> Self {
        Self { has_color, text: String::new() }
    }

    /// Adds a line without the spaces at its end.
    pub(crate) fn line(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        let len = cells.iter().rposition(|(c, _)| *c != ' ').map_or(0, |last| last + 1);
        for run in cells[..len].chunk_by(|(_, a), (_, b)| a == b) {
            self.run(run);
        }
        self.text.push('\n');
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    fn run(&mut self, run: &[Cell]) {
        let text = run.iter().map(|(c, _)| *c);
        let style = run.first().map_or(Style::new(), |(_, ink)| ink.style());
        if self.has_color {
            self.text.push_str(&style.render().to_string());
            self.text.extend(text);
            self.text.push_str(&style.render_reset().to_string());
        } else {
            self.text.extend(text);
        }
    }
}
