//! Charts as SVG without a script: for `--format svg`, and in HTML until the script draws them.

use std::fmt::{self, Display, Formatter, Write};

use super::chart::{Chart, MarkAxis, Positions, Role, Shape, Unit};
use super::document::Document;
use super::escape::Html;
use super::scale::Scale;
use super::web;
use crate::text::wrap;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
/// The plot, inside labels, legend and axis titles.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 16.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = HEIGHT - 52.0;
/// About the width of a letter, for the legend.
const LETTER: f64 = 7.0;
/// Letters on a line of a heading.
const HEADING_LETTERS: usize = 84;
const TITLE: f64 = 60.0;
const CHART_GAP: f64 = 56.0;
const STEPS_MAX: u32 = 5;

impl Document {
    /// Returns all charts below each other as one SVG file, with the title and without tables and text.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let charts: Vec<_> = self.charts().enumerate().collect();
        let height = TITLE + charts.len() as f64 * (HEIGHT + CHART_GAP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" class=\"page\">\n<style>{}</style>\n<title>{title}</title>\n\
             <rect class=\"background\" width=\"100%\" height=\"100%\"/>\n\
             <text class=\"title\" x=\"16\" y=\"26\">{title}</text>\n",
            web::MARKS_CSS,
            title = Html(&self.title),
        );
        for (index, chart) in charts {
            let top = TITLE + index as f64 * (HEIGHT + CHART_GAP);
            writeln!(svg, "<g transform=\"translate(0 {top})\">").expect("a string takes all");
            for (line, y) in wrap(&chart.title, HEADING_LETTERS).iter().zip([4, 22]) {
                let line = Html(line);
                writeln!(svg, "<text class=\"heading\" x=\"16\" y=\"{y}\">{line}</text>")
                    .expect("a string takes all");
            }
            writeln!(
                svg,
                "<g transform=\"translate(0 28)\">{}</g>\n</g>",
                Drawing { chart, index }
            )
            .expect("a string takes all");
        }
        svg + "</svg>\n"
    }
}

/// A chart as an element of its own, to be put into HTML.
pub(crate) struct ChartSvg<'a> {
    pub(crate) chart: &'a Chart,
    /// Different for each chart of a document, so that names in it are.
    pub(crate) index: usize,
}

impl Display for ChartSvg<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { chart, index } = *self;
        let title = Html(&chart.title);
        write!(f, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">")?;
        write!(f, "{}</svg>", Drawing { chart, index })
    }
}

struct Drawing<'a> {
    chart: &'a Chart,
    index: usize,
}

impl Display for Drawing<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let plot = Plot::new(self.chart, self.index);
        plot.write_hatch(f)?;
        plot.write_legend(f)?;
        plot.write_axes(f)?;
        plot.write_series(f)?;
        plot.write_marks(f)
    }
}

struct Plot<'a> {
    chart: &'a Chart,
    index: usize,
    x: Scale,
    y: Scale,
    /// For each series, where each value begins: 0 unless series are stacked.
    bases: Vec<Vec<f64>>,
}

impl<'a> Plot<'a> {
    fn new(chart: &'a Chart, index: usize) -> Self {
        let bases = bases(chart);
        let tops = chart.series.iter().zip(&bases).flat_map(|(series, bases)| {
            bases.iter().enumerate().filter_map(|(i, base)| Some(base + series.value(i)?))
        });
        let marks = chart.marks.iter().filter(|mark| mark.axis == MarkAxis::Y).map(|mark| mark.at);
        let max = tops.chain(marks).fold(0.0, f64::max);
        let y = Scale::from_zero(max, chart.y.unit, STEPS_MAX);
        Self { chart, index, x: x_scale(chart), y, bases }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.part(value) * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - self.y.part(value) * (BOTTOM - TOP)
    }

    /// Returns where the position with this index begins.
    fn position(&self, index: usize) -> f64 {
        match &self.chart.positions {
            Positions::Values(values) => values[index],
            Positions::Categories(_) => index as f64,
        }
    }

    fn hatch(&self) -> String {
        format!("hatch-{}", self.index)
    }

    fn write_hatch(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<pattern id=\"{}\" class=\"s-denied\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect class=\"hatch-fill\" width=\"5\" height=\"5\"/>\
             <rect class=\"hatch-line\" width=\"2\" height=\"5\"/></pattern>",
            self.hatch()
        )
    }

    fn write_legend(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut x = LEFT;
        for (i, series) in self.chart.series.iter().enumerate() {
            let (class, fill) = (class(series.role, i), self.fill(i));
            write!(
                f,
                "<g class=\"{class}\"><rect class=\"bar\" x=\"{x:.1}\" y=\"8\" width=\"12\" height=\"12\"{fill}/></g>"
            )?;
            write!(
                f,
                "<text class=\"label\" x=\"{:.1}\" y=\"18\">{}</text>",
                x + 18.0,
                Html(&series.name)
            )?;
            x += 40.0 + LETTER * series.name.chars().count() as f64;
        }
        Ok(())
    }

    fn write_axes(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Chart { x, y, .. } = self.chart;
        for tick in self.y.ticks() {
            let (at, text) = (self.y(tick), self.y.text(tick, y.unit));
            write!(f, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>")?;
            write!(
                f,
                "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 8.0,
                at + 4.0
            )?;
        }
        for (at, text) in self.x_labels() {
            write!(
                f,
                "<text class=\"tick\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                BOTTOM + 18.0,
                Html(&text)
            )?;
        }
        write!(f, "<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>")?;
        let middle = (LEFT + RIGHT) / 2.0;
        write!(
            f,
            "<text class=\"axis-title\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 10.0,
            Html(&x.label)
        )?;
        let middle = (TOP + BOTTOM) / 2.0;
        write!(
            f,
            "<text class=\"axis-title\" transform=\"translate(14 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            Html(&y.label)
        )
    }

    fn x_labels(&self) -> Vec<(f64, String)> {
        match &self.chart.positions {
            Positions::Values(_) => {
                let unit = self.chart.x.unit;
                self.x.ticks().map(|tick| (self.x(tick), self.x.text(tick, unit))).collect()
            }
            Positions::Categories(names) => {
                let at = |i: usize| self.x(i as f64 + 0.5);
                names.iter().enumerate().map(|(i, name)| (at(i), name.clone())).collect()
            }
        }
    }

    fn write_series(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, series) in self.chart.series.iter().enumerate() {
            write!(f, "<g class=\"{}\">", class(series.role, i))?;
            match self.chart.shape {
                Shape::Bars => self.write_bars(i, f)?,
                Shape::Area => {
                    self.write_area(i, f)?;
                    self.write_line(i, f)?;
                }
                Shape::Line => self.write_line(i, f)?,
            }
            f.write_str("</g>")?;
        }
        Ok(())
    }

    fn write_bars(&self, series: usize, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("<path class=\"bar\"")?;
        f.write_str(&self.fill(series))?;
        f.write_str(" d=\"")?;
        let (slots, slot) = match self.chart.stacked {
            true => (1.0, 0.0),
            false => (self.chart.series.len() as f64, series as f64),
        };
        for (index, base, value) in self.values(series).filter(|(_, _, value)| *value > 0.0) {
            let from = self.position(index);
            let inset =
                if matches!(self.chart.positions, Positions::Categories(_)) { 0.15 } else { 0.0 };
            let width = (self.end(index) - from) * (1.0 - 2.0 * inset);
            let begin = from + inset * (self.end(index) - from) + slot * width / slots;
            let (left, right) = (self.x(begin), self.x(begin + width / slots));
            let (top, bottom) = (self.y(base + value), self.y(base));
            let gap = if right - left > 3.0 { 1.0 } else { 0.0 };
            write!(f, "M{left:.1} {bottom:.1}V{top:.1}H{:.1}V{bottom:.1}Z", right - gap)?;
        }
        f.write_str("\"/>")
    }

    fn write_line(&self, series: usize, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("<path class=\"line\" d=\"")?;
        let mut last = None;
        for (index, base, value) in self.values(series) {
            let is_next = last.is_some_and(|last| last + 1 == index);
            let command = if is_next { 'L' } else { 'M' };
            write!(f, "{command}{:.1} {:.1}", self.x(self.position(index)), self.y(base + value))?;
            last = Some(index);
        }
        f.write_str("\"/>")
    }

    fn write_area(&self, series: usize, f: &mut Formatter<'_>) -> fmt::Result {
        let values: Vec<_> = self.values(series).collect();
        f.write_str("<path class=\"area\" d=\"")?;
        for run in values.chunk_by(|(a, _, _), (b, _, _)| a + 1 == *b) {
            for (n, (index, base, value)) in run.iter().enumerate() {
                let command = if n == 0 { 'M' } else { 'L' };
                write!(
                    f,
                    "{command}{:.1} {:.1}",
                    self.x(self.position(*index)),
                    self.y(base + value)
                )?;
            }
            for (index, base, _) in run.iter().rev() {
                write!(f, "L{:.1} {:.1}", self.x(self.position(*index)), self.y(*base))?;
            }
            f.write_char('Z')?;
        }
        f.write_str("\"/>")
    }

    fn write_marks(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for mark in &self.chart.marks {
            let label = Html(&mark.label);
            match mark.axis {
                MarkAxis::Y => {
                    let y = self.y(mark.at);
                    write!(f, "<path class=\"mark\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>")?;
                    write!(
                        f,
                        "<text class=\"label\" x=\"{RIGHT}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                        y - 4.0
                    )?;
                }
                MarkAxis::X => {
                    let x = self.x(mark.at);
                    write!(f, "<path class=\"mark\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/>")?;
                    write!(
                        f,
                        "<text class=\"label\" x=\"{:.1}\" y=\"{}\">{label}</text>",
                        x + 4.0,
                        TOP + 10.0
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Returns index, base and value where there is no gap.
    fn values(&self, series: usize) -> impl Iterator<Item = (usize, f64, f64)> {
        let (bases, series) = (&self.bases[series], &self.chart.series[series]);
        bases.iter().enumerate().filter_map(|(i, base)| Some((i, *base, series.value(i)?)))
    }

    /// Returns where the bar at an index ends.
    fn end(&self, index: usize) -> f64 {
        match &self.chart.positions {
            Positions::Values(values) => end(values, index),
            Positions::Categories(_) => index as f64 + 1.0,
        }
    }

    /// Returns the attribute for what is denied, which differs not only by colour.
    fn fill(&self, series: usize) -> String {
        match self.chart.series[series].role {
            Role::Denied => format!(" fill=\"url(#{})\"", self.hatch()),
            _ => " fill=\"currentColor\"".to_string(),
        }
    }
}

/// Returns where the bar at an index ends: where the next begins, or as wide as the one before.
fn end(values: &[f64], index: usize) -> f64 {
    match (values.get(index + 1), index.checked_sub(1)) {
        (Some(next), _) => *next,
        (None, Some(before)) => 2.0 * values[index] - values[before],
        (None, None) => values[index] + 1.0,
    }
}

fn x_scale(chart: &Chart) -> Scale {
    let (min, max) = match &chart.positions {
        Positions::Categories(names) => (0.0, names.len() as f64),
        Positions::Values(values) => {
            let (first, last) = (values.first().copied(), values.last().copied());
            match chart.shape {
                Shape::Bars if !values.is_empty() => (values[0], end(values, values.len() - 1)),
                _ => (first.unwrap_or(0.0), last.unwrap_or(1.0)),
            }
        }
    };
    // A date is wider than a number.
    let steps_max = if chart.x.unit == Unit::Time { 6 } else { 10 };
    Scale::between(min, max, chart.x.unit, steps_max)
}

fn bases(chart: &Chart) -> Vec<Vec<f64>> {
    let mut sums = vec![0.0; chart.positions.len()];
    let base_of = |series: &super::chart::Series| {
        let bases = sums.clone();
        if chart.stacked {
            (0..sums.len()).for_each(|i| sums[i] += series.value(i).unwrap_or(0.0));
        }
        bases
    };
    chart.series.iter().map(base_of).collect()
}

/// Returns the class of a series, which sets its colour.
fn class(role: Role, index: usize) -> String {
    let name = match role {
        Role::Admitted => "admitted",
        Role::Denied => "denied",
        Role::Delayed => "delayed",
        Role::Shadow => "shadow",
        Role::Offered => "offered",
        Role::Other => return format!("s-{}", index % web::COLOURS),
    };
    format!("s-{name}")
}
