//! Style sheets and ES modules that draw charts in a browser, for reports and for other pages that show charts.
//!
//! They have no dependencies and need no build step. A page includes the style sheets and imports `chart.js`.

/// The number of colours for series that are [`Role::Other`](super::Role::Other).
pub(crate) const COLOURS: usize = 6;

/// Colours and lines of what is drawn.
pub const MARKS_CSS: &str = include_str!("../../web/marks.css");
/// What surrounds a drawing: legend, values under the pointer, table.
pub const CHART_CSS: &str = include_str!("../../web/chart.css");
/// Numbers as text.
pub const FORMAT_JS: &str = include_str!("../../web/format.js");
/// Elements, made from text that is never markup.
pub const DOM_JS: &str = include_str!("../../web/dom.js");
/// Axes with round numbers.
pub const SCALE_JS: &str = include_str!("../../web/scale.js");
/// A chart as a table.
pub const TABLE_JS: &str = include_str!("../../web/table.js");
/// What is drawn of a chart.
pub const PLOT_JS: &str = include_str!("../../web/plot.js");
/// A chart that can be used: pointer, keyboard, legend.
pub const CHART_JS: &str = include_str!("../../web/chart.js");

const REPORT_CSS: &str = include_str!("../../web/report.css");
const REPORT_JS: &str = include_str!("../../web/report.js");

/// Returns the style sheets of a report as one.
pub(crate) fn report_style() -> String {
    [MARKS_CSS, CHART_CSS, REPORT_CSS].concat()
}

/// Returns the modules of a report as one, for a file that can import nothing.
pub(crate) fn report_script() -> String {
    let modules = [FORMAT_JS, DOM_JS, SCALE_JS, TABLE_JS, PLOT_JS, CHART_JS, REPORT_JS];
    let lines = modules.iter().flat_map(|module| module.lines());
    let lines = lines.filter(|line| !line.starts_with("import "));
    lines.flat_map(|line| [line.strip_prefix("export ").unwrap_or(line), "\n"]).collect()
}
