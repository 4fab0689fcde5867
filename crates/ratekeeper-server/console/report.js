// A report as a page shows it: the same content as `--format html`.
import { element } from "./dom.js";
import { makeChart } from "./chart.js";
import { scrollTable } from "./listing.js";

function block(of) {
  if (of.text !== undefined) return element("p", {}, of.text);
  if (of.facts) {
    return element("dl", { class: "facts" }, ...of.facts.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  }
  if (of.chart) {
    const figure = element("figure", { class: "chart" }, element("figcaption", {}, of.chart.title));
    makeChart(figure, of.chart);
    return figure;
  }
  const { columns, rows, note } = of.table;
  const cells = (row) => row.map((cell, i) => element(i ? "td" : "th", i ? { class: columns[i].is_number ? "number" : null } : { scope: "row" }, cell));
  const head = scrollTable("Numbers", [], [], rows.map((row) => element("tr", {}, ...cells(row))));
  head.querySelector("thead tr").append(...columns.map(({ name, is_number: isNumber }) =>
    element("th", { scope: "col", class: isNumber ? "number" : null }, name)));
  return element("div", {}, head, note ? element("p", { class: "caption" }, note) : null);
}

// Returns the elements of a report.
export function reportNodes({ title, notes, sections }) {
  return [element("h3", {}, title), ...notes.map((note) => element("p", { class: "caption" }, note)),
    ...sections.flatMap(({ blocks }) => blocks.map(block))];
}
