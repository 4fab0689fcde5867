// A chart as a table: for screen readers, and to copy into a spreadsheet.
import { element } from "./dom.js";
import { valueText } from "./format.js";

// Returns the cells of a chart's table, with the names of the columns first.
export function chartRows(chart) {
  const { values, categories } = chart.positions;
  const names = categories ?? values.map((value) => valueText(chart.x.unit, value));
  const row = (name, index) => [
    name,
    ...chart.series.map((series) => valueText(chart.y.unit, series.values[index])),
  ];
  return [[chart.x.label, ...chart.series.map((series) => series.name)], ...names.map(row)];
}

function cells(kind, row) {
  return row.map((text, index) =>
    element(kind, { class: index > 0 ? "number" : null, scope: kind === "th" ? "col" : null }, text));
}

// Returns a table of these rows, of which the first is the header.
export function makeTable([header, ...rows]) {
  return element("table", {},
    element("thead", {}, element("tr", {}, ...cells("th", header))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row)))));
}

async function copy(rows, button) {
  const text = rows.map((row) => row.join("\t")).join("\n");
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select and copy the table instead";
  }
}

// Returns the table of a chart, folded until it is wanted. `chart` returns the chart of the moment.
export function dataTable(chart) {
  const scroll = element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "table" });
  const button = element("button", { type: "button", onclick: () => copy(chartRows(chart()), button) }, "Copy");
  const details = element("details", { class: "data" }, element("summary", {}, "Data"), button, scroll);
  const fill = () => details.open && scroll.replaceChildren(makeTable(chartRows(chart())));
  details.addEventListener("toggle", fill);
  details.refresh = fill;
  return details;
}
