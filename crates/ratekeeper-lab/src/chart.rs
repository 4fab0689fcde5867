//! Bar charts for a terminal: panels below each other, with one scale and one time axis.
//!
//! A label names the value at the upper edge of its line, so that a bar that fills the line has that value.
//! The axis is the line of 0.

use crate::canvas::{Canvas, Cell, Ink, cells};
use crate::round;
use crate::text::{number_text, span_text, wrap};

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const SHADE: char = '░';
/// The eighths of a line that a block can fill.
const LEVELS: usize = 8;
const LABEL_WIDTH: usize = 4;
/// A label, a space and the axis.
const MARGIN: usize = LABEL_WIDTH + 2;
/// The smallest width that charts are made for.
const WIDTH_MIN: usize = 40;
/// Maximum width of a bar, for very few bars.
const BAR_WIDTH_MAX: usize = 3;
/// The least space between two labels of the time axis.
const LABEL_GAP: usize = 2;

/// How text for a terminal is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// The number of columns of the terminal; less than 40 is treated as 40.
    pub width: usize,
    /// Whether to write escape codes for colours. The text is the same without.
    pub color: bool,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { width: 80, color: false }
    }
}

impl TextOptions {
    /// Returns the width, at least [`WIDTH_MIN`].
    pub(crate) fn width(self) -> usize {
        self.width.max(WIDTH_MIN)
    }

    /// Returns how many bars fit.
    pub(crate) fn bars_max(self) -> usize {
        self.width() - MARGIN
    }
}

/// What the two parts of a bar are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Legend {
    pub(crate) lower: &'static str,
    pub(crate) upper: &'static str,
}

impl Legend {
    pub(crate) const DECISIONS: Self = Self { lower: "admitted", upper: "denied" };
    pub(crate) const RESPONSES: Self = Self { lower: "served", upper: "failed" };
}

/// Panels with the same columns of time.
#[derive(Debug)]
pub(crate) struct Chart {
    /// The time that a bar covers.
    pub(crate) column_us: u64,
    pub(crate) legend: Legend,
    pub(crate) panels: Vec<Panel>,
}

/// Bars over time with a heading, which may be empty.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) heading: String,
    pub(crate) bars: Bars,
}

/// What the bars of a panel show.
#[derive(Debug)]
pub(crate) enum Bars {
    /// Requests when they arrive: admitted ones, and denied ones above them.
    Decisions(Vec<Decided>),
    /// Admitted requests when they are released.
    Released(Vec<u64>),
}

/// The requests that arrived in one column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
}

impl Bars {
    fn len(&self) -> usize {
        match self {
            Self::Decisions(bars) => bars.len(),
            Self::Released(bars) => bars.len(),
        }
    }

    fn max(&self) -> u64 {
        let max = match self {
            Self::Decisions(bars) => bars.iter().map(|bar| bar.admitted + bar.denied).max(),
            Self::Released(bars) => bars.iter().copied().max(),
        };
        max.unwrap_or(0)
    }
}

impl Chart {
    /// Returns the chart as text of at most `options.width` columns.
    pub(crate) fn to_text(&self, options: TextOptions) -> String {
        let scale = Scale::new(&self.panels);
        let axis = TimeAxis::new(self, options.bars_max());
        let mut canvas = Canvas::new(options.color);
        self.draw_legend(&mut canvas);
        for panel in &self.panels {
            for line in wrap(&panel.heading, options.width()) {
                canvas.line(cells(&line, Ink::Heading));
            }
            scale.draw(&panel.bars, axis.bar_width, &mut canvas);
            axis.draw(&mut canvas);
        }
        axis.draw_labels(options.bars_max(), &mut canvas);
        canvas.into_text()
    }

    fn draw_legend(&self, canvas: &mut Canvas) {
        let unit = format!("requests per {}: ", span_text(self.column_us));
        let Legend { lower, upper } = self.legend;
        let (lower, upper) = (format!("█ {lower}"), format!("░ {upper}"));
        let admitted = cells(&lower, Ink::Admitted);
        let denied = cells(&upper, Ink::Denied);
        let gap = cells("  ", Ink::Text);
        canvas.line(cells(&unit, Ink::Text).chain(admitted).chain(gap).chain(denied));
    }
}

/// The vertical scale of all panels.
struct Scale {
    max: u64,
    /// Lines up to `max`; even, so that half of `max` is the edge of a line.
    lines: usize,
}

impl Scale {
    fn new(panels: &[Panel]) -> Self {
        let max = panels.iter().map(|panel| panel.bars.max()).max().unwrap_or(0);
        let lines = if panels.len() <= 2 { 8 } else { 6 };
        Self { max: round::maximum(max), lines }
    }

    fn draw(&self, bars: &Bars, bar_width: usize, canvas: &mut Canvas) {
        for line in (0..self.lines_of(bars)).rev() {
            let bars = self.cells(bars, line).into_iter();
            let wide = bars.flat_map(|cell| std::iter::repeat_n(cell, bar_width));
            canvas.line(self.edge(line + 1).into_iter().chain(wide));
        }
    }

    /// Returns how many lines the bars take. Releases are spread over time: often half a panel is enough.
    fn lines_of(&self, bars: &Bars) -> usize {
        match bars {
            Bars::Released(_) if bars.max() <= self.max / 2 => self.lines / 2,
            _ => self.lines,
        }
    }

    /// Returns the label and the axis for the line whose upper edge is `edge` lines above 0.
    fn edge(&self, edge: usize) -> Vec<Cell> {
        let value = match edge {
            edge if edge == self.lines => Some(self.max),
            edge if 2 * edge == self.lines && self.max > 1 => Some(self.max / 2),
            _ => None,
        };
        let axis = if value.is_some() { '┤' } else { '│' };
        let label = value.map(number_text).unwrap_or_default();
        margin(&label, axis)
    }

    fn cells(&self, bars: &Bars, line: usize) -> Vec<Cell> {
        match bars {
            Bars::Decisions(bars) => bars.iter().map(|bar| self.decided(*bar, line)).collect(),
            Bars::Released(bars) => {
                bars.iter().map(|n| (block(self.levels(*n), line), Ink::Released)).collect()
            }
        }
    }

    /// Returns the part of a bar in `line`. A block can fill a line in part, a shade cannot: the denied
    /// requests begin in the line above the admitted ones and end at the line edge nearest to their value.
    fn decided(&self, bar: Decided, line: usize) -> Cell {
        let levels = self.levels(bar.admitted);
        if bar.denied == 0 {
            return (block(levels, line), Ink::Admitted);
        }
        // Denied requests are always visible, in the top line if need be.
        let start = levels.div_ceil(LEVELS).min(self.lines - 1);
        let end = (self.levels(bar.admitted + bar.denied) + LEVELS / 2) / LEVELS;
        if (start..end.max(start + 1)).contains(&line) {
            return (SHADE, Ink::Denied);
        }
        (if line < start { block(levels, line) } else { ' ' }, Ink::Admitted)
    }

    /// Returns the height of a bar in eighths of a line, rounded to the nearest, but at least 1 for a value
    /// above 0.
    fn levels(&self, value: u64) -> usize {
        let (max, levels) = (u128::from(self.max), (LEVELS * self.lines) as u128);
        let nearest = (u128::from(value) * levels + max / 2) / max;
        (nearest as usize).max(usize::from(value > 0))
    }
}

/// Returns the part in `line` of a bar with a height of `levels`.
fn block(levels: usize, line: usize) -> char {
    BLOCKS[levels.saturating_sub(LEVELS * line).min(LEVELS)]
}

fn margin(label: &str, axis: char) -> Vec<Cell> {
    let label = format!("{label:>LABEL_WIDTH$} ");
    cells(&label, Ink::Text).chain([(axis, Ink::Axis)]).collect()
}

/// The horizontal axis of all panels.
struct TimeAxis {
    bar_width: usize,
    /// The width of all bars.
    width: usize,
    ticks: Vec<Tick>,
}

/// A labelled time, at the left edge of a bar.
struct Tick {
    position: usize,
    label: String,
}

impl TimeAxis {
    fn new(chart: &Chart, width_max: usize) -> Self {
        let bars = chart.panels.first().map_or(0, |panel| panel.bars.len());
        let bar_width = (width_max / bars.max(1)).clamp(1, BAR_WIDTH_MAX);
        let width = bars * bar_width;
        let steps = round::durations_us().filter(|us| us.is_multiple_of(chart.column_us));
        let mut ticks = steps.map(|us| Self::ticks(us, chart.column_us, bar_width, width));
        let ticks = ticks.find(|ticks| is_legible(ticks)).unwrap_or_default();
        Self { bar_width, width, ticks }
    }

    /// Returns a tick for every `step_us`.
    fn ticks(step_us: u64, column_us: u64, bar_width: usize, width: usize) -> Vec<Tick> {
        let step = usize::try_from(step_us / column_us).unwrap_or(usize::MAX);
        let positions = (0..=width).step_by(step.saturating_mul(bar_width));
        let labels = (0..).map(|n: u64| span_text(n.saturating_mul(step_us)));
        positions.zip(labels).map(|(position, label)| Tick { position, label }).collect()
    }

    fn draw(&self, canvas: &mut Canvas) {
        let is_tick = |position| self.ticks.iter().any(|tick| tick.position == position);
        let line = (0..self.width).map(|position| if is_tick(position) { '┬' } else { '─' });
        canvas.line(margin("0", '└').into_iter().chain(line.map(|c| (c, Ink::Axis))));
    }

    fn draw_labels(&self, width_max: usize, canvas: &mut Canvas) {
        let mut line = String::new();
        for Tick { position, label } in &self.ticks {
            if position + label.chars().count() <= width_max {
                let gap = position - line.chars().count();
                line.extend(std::iter::repeat_n(' ', gap));
                line.push_str(label);
            }
        }
        canvas.line(cells(&" ".repeat(MARGIN), Ink::Text).chain(cells(&line, Ink::Text)));
    }
}

/// Whether there is space between labels and no two that follow each other are the same.
fn is_legible(ticks: &[Tick]) -> bool {
    ticks.windows(2).all(|pair| {
        let end = pair[0].position + pair[0].label.chars().count();
        end + LABEL_GAP <= pair[1].position && pair[0].label != pair[1].label
    })
}

#[cfg(test)]
mod tests;
