// A chart that can be used: values under the pointer, series that can be hidden, zoom, keyboard, a table.
import { element, shape } from "./dom.js";
import { valueText } from "./format.js";
import { drawPlot, edges, seriesClass } from "./plot.js";
import { dataTable } from "./table.js";

const HEIGHT = 280;
const KEYS = "Arrow keys move, Home and End jump, + and − zoom, Escape resets";
// A drag shorter than this is a click.
const DRAG_MIN = 6;

function swatch(series, s) {
  return element("span", { class: `swatch ${series.role} ${seriesClass(series, s)}`, "aria-hidden": "true" });
}

// Draws `chart` into `figure`, after its caption. Returns { update(chart) }.
export function makeChart(figure, first) {
  let chart = first;
  let plot = null;
  let cursor = null;
  let zoom = null;
  let dragFrom = null;
  const hidden = new Set();
  const svg = shape("svg", { role: "img", tabindex: 0, "aria-label": `${first.title}. ${KEYS}` });
  const overlay = shape("g", { class: "overlay" });
  const readout = element("output", { class: "readout", hidden: true });
  const reset = element("button", { type: "button", class: "reset", hidden: true, onclick: () => setZoom(null) }, "Reset zoom");
  const legend = element("div", { class: "legend", role: "group", "aria-label": "Series" });
  const table = dataTable(() => chart);
  const stage = element("div", { class: "stage" }, svg, readout);
  const caption = figure.querySelector("figcaption");
  const note = figure.querySelector(".caption:last-child");
  figure.replaceChildren(...[caption, element("div", { class: "tools" }, legend, reset), stage, table, note].filter(Boolean));

  const count = () => edges(chart).length - 1;
  const range = () => zoom ?? [0, count()];
  const shown = (s) => !hidden.has(chart.series[s].name);

  function draw() {
    const [from, to] = range();
    const width = Math.max(stage.clientWidth, 240);
    if (to <= from) return;
    plot = drawPlot(svg, chart, { width, height: HEIGHT, from, to, shown });
    svg.append(overlay);
    reset.hidden = zoom === null;
    drawCursor();
  }

  function drawLegend() {
    legend.replaceChildren(...chart.series.map((series, s) =>
      element("button", {
        type: "button", class: "series", "aria-pressed": String(shown(s)),
        onclick: () => toggle(series.name),
      }, swatch(series, s), series.name)));
  }

  function toggle(name) {
    if (!hidden.delete(name)) hidden.add(name);
    const focused = [...legend.children].indexOf(document.activeElement);
    drawLegend();
    legend.children[focused]?.focus();
    draw();
  }

  function setZoom(next) {
    zoom = next && next[1] - next[0] < count() ? next : null;
    if (cursor !== null) setCursor(cursor);
    draw();
  }

  function setCursor(index) {
    const [from, to] = range();
    cursor = index === null ? null : Math.min(Math.max(index, from), to - 1);
    drawCursor();
  }

  function cursorPixel() {
    const width = chart.shape === "bars" ? plot.all[cursor + 1] - plot.all[cursor] : 0;
    return plot.x(plot.all[cursor] + width / 2);
  }

  function drawCursor() {
    overlay.replaceChildren();
    const [from, to] = range();
    readout.hidden = cursor === null || cursor < from || cursor >= to || !plot;
    if (readout.hidden) return;
    const x = cursorPixel();
    overlay.append(shape("path", { class: "cursor", d: `M${x} ${plot.top}V${plot.bottom}` }));
    const { values, categories } = chart.positions;
    const rows = chart.series.flatMap((series, s) => (shown(s) ? [row(series, s)] : []));
    readout.replaceChildren(
      element("strong", {}, categories ? categories[cursor] : valueText(chart.x.unit, values[cursor])), ...rows);
    place(x);
  }

  function row(series, s) {
    const top = plot.tops[s][cursor];
    if (top !== null && chart.shape !== "bars") {
      overlay.append(shape("circle", { class: `dot ${seriesClass(series, s)}`, cx: cursorPixel(), cy: plot.y(top), r: 4 }));
    }
    return element("span", {}, swatch(series, s), `${series.name}: ${valueText(chart.y.unit, series.values[cursor])}`);
  }

  // Puts the values beside the cursor, on the side with space.
  function place(x) {
    const isLate = x > stage.clientWidth / 2;
    const left = isLate ? x - readout.offsetWidth - 10 : x + 10;
    readout.style.left = `${Math.max(0, Math.min(left, stage.clientWidth - readout.offsetWidth))}px`;
  }

  function indexAt(event) {
    const box = svg.getBoundingClientRect();
    const value = plot.x.invert(((event.clientX - box.left) / box.width) * Math.max(stage.clientWidth, 240));
    const [from, to] = range();
    let index = from;
    const isPast = (i) => (chart.shape === "bars" ? plot.all[i] <= value : (plot.all[i - 1] + plot.all[i]) / 2 <= value);
    while (index + 1 < to && isPast(index + 1)) index++;
    return index;
  }

  function zoomBy(factor) {
    const [from, to] = range();
    const size = Math.max(4, Math.round((to - from) * factor));
    const middle = cursor ?? Math.floor((from + to) / 2);
    const start = Math.max(0, Math.min(middle - Math.floor(size / 2), count() - size));
    setZoom([start, Math.min(start + size, count())]);
  }

  const keys = {
    ArrowLeft: () => setCursor((cursor ?? range()[1]) - 1),
    ArrowRight: () => setCursor((cursor ?? range()[0] - 1) + 1),
    Home: () => setCursor(range()[0]),
    End: () => setCursor(range()[1] - 1),
    "+": () => zoomBy(0.5),
    "=": () => zoomBy(0.5),
    "-": () => zoomBy(2),
    Escape: () => { setZoom(null); setCursor(null); },
  };

  svg.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
    if (!act || !plot) return;
    event.preventDefault();
    readout.setAttribute("aria-live", "polite");
    act();
  });
  svg.addEventListener("pointermove", (event) => {
    if (!plot) return;
    readout.setAttribute("aria-live", "off");
    setCursor(indexAt(event));
    if (dragFrom) drawSelection(event);
  });
  svg.addEventListener("pointerleave", () => !dragFrom && setCursor(null));
  svg.addEventListener("blur", () => setCursor(null));
  svg.addEventListener("pointerdown", (event) => {
    if (!plot || event.button !== 0 || event.pointerType === "touch" || chart.positions.categories) return;
    svg.setPointerCapture(event.pointerId);
    dragFrom = { pixel: event.clientX, index: indexAt(event) };
  });
  svg.addEventListener("pointerup", (event) => {
    const begun = dragFrom;
    dragFrom = null;
    if (!begun || Math.abs(event.clientX - begun.pixel) < DRAG_MIN) return;
    const ends = [begun.index, indexAt(event)].sort((a, b) => a - b);
    setZoom([ends[0], Math.max(ends[1] + 1, ends[0] + 2)]);
  });
  svg.addEventListener("dblclick", () => setZoom(null));

  function drawSelection(event) {
    const [a, b] = [plot.all[dragFrom.index], plot.all[indexAt(event)]].sort((p, q) => p - q);
    overlay.append(shape("rect", { class: "selection", x: plot.x(a), y: plot.top, width: plot.x(b) - plot.x(a), height: plot.bottom - plot.top }));
  }

  drawLegend();
  draw();
  let drawnWidth = stage.clientWidth;
  new ResizeObserver(() => {
    if (stage.clientWidth === drawnWidth) return;
    drawnWidth = stage.clientWidth;
    draw();
  }).observe(stage);

  return {
    update(next) {
      const names = chart.series.map((series) => series.name).join("\n");
      const isSame = names === next.series.map((series) => series.name).join("\n");
      chart = next;
      if (!isSame) drawLegend();
      if (zoom && zoom[1] > count()) zoom = null;
      if (cursor !== null && cursor >= count()) cursor = null;
      draw();
      table.refresh();
    },
  };
}
