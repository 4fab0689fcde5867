// What is drawn of a chart, for a width and a range of positions.
import { shape } from "./dom.js";
import { tickText } from "./format.js";
import { makeScale } from "./scale.js";

const COLOURS = 6;
const LETTER = 6.6;
const TOP = 14;
const BOTTOM = 46;
const RIGHT = 14;
let plots = 0;

// Returns the class that sets the colour of a series.
export function seriesClass(series, index) {
  return series.role === "other" ? `s-${index % COLOURS}` : `s-${series.role}`;
}

// Returns where each position of a chart begins, and where the last ends.
export function edges(chart) {
  const { values, categories } = chart.positions;
  if (categories) return Array.from({ length: categories.length + 1 }, (_, index) => index);
  const last = values.length - 1;
  if (last < 0) return [0, 1];
  return [...values, last > 0 ? 2 * values[last] - values[last - 1] : values[last] + 1];
}

// Returns the sums below each value of each series that is shown.
function basesOf(chart, shown) {
  const sums = new Array(edges(chart).length - 1).fill(0);
  return chart.series.map((series, index) => {
    const bases = chart.stacked ? [...sums] : sums.map(() => 0);
    if (chart.stacked && shown(index)) sums.forEach((sum, i) => (sums[i] = sum + (series.values[i] ?? 0)));
    return bases;
  });
}

// Draws `chart` into `svg`. `view` is { width, height, from, to, shown }: positions from index `from` to before `to`,
// and which series. Returns what a pointer needs: { x, y, left, right, top, bottom, tops }.
export function drawPlot(svg, chart, view) {
  const { width, height, from, to, shown } = view;
  const all = edges(chart);
  const bases = basesOf(chart, shown);
  const tops = chart.series.map((series, s) =>
    series.values.map((value, i) => (value === null ? null : bases[s][i] + value)));
  const visible = tops.flatMap((top, s) => (shown(s) ? top.slice(from, to) : [])).filter((top) => top !== null);
  const values = chart.marks.filter((mark) => mark.axis === "y").map((mark) => mark.at);
  const max = Math.max(0, ...visible, ...values);
  const bottom = height - BOTTOM;
  const y = makeScale({ min: 0, max, unit: chart.y.unit, steps: 5, from: bottom, to: TOP, isRound: true });
  const labels = y.ticks.map((tick) => tickText(chart.y.unit, tick, y.step));
  const left = 30 + Math.max(...labels.map((label) => label.length)) * LETTER;
  const right = width - RIGHT;
  const isBars = chart.shape === "bars";
  const x = makeScale({
    min: all[from], max: isBars ? all[to] : all[to - 1], unit: chart.x.unit,
    steps: Math.max(2, Math.floor((right - left) / (chart.x.unit === "time" ? 90 : 64))), from: left, to: right,
  });
  const plot = { x, y, left, right, top: TOP, bottom, tops, all };
  const hatch = `plot-hatch-${plots++}`;
  svg.replaceChildren(
    hatchPattern(hatch),
    ...axes(chart, plot, view, labels),
    shape("clipPath", { id: `${hatch}-clip` }, shape("rect", { x: left, y: 0, width: right - left, height: bottom + 1 })),
    shape("g", { "clip-path": `url(#${hatch}-clip)` },
      ...chart.series.flatMap((series, s) => (shown(s) ? [drawSeries(chart, s, plot, view, bases[s], hatch)] : []))),
    ...marks(chart, plot),
  );
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return plot;
}

function hatchPattern(id) {
  const pattern = { id, class: "s-denied", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return shape("pattern", pattern,
    shape("rect", { class: "hatch-fill", width: 5, height: 5 }),
    shape("rect", { class: "hatch-line", width: 2, height: 5 }));
}

function axes(chart, plot, { width, height, from, to }, labels) {
  const { x, y, left, right, bottom } = plot;
  const text = (kind, attributes, content) => shape("text", { class: kind, ...attributes }, content);
  const horizontal = y.ticks.flatMap((tick, i) => [
    shape("path", { class: "grid", d: `M${left} ${y(tick)}H${right}` }),
    text("tick", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, labels[i]),
  ]);
  return [
    ...horizontal,
    ...xLabels(chart, plot, from, to).map(([at, label, anchor]) =>
      text("tick", { x: at, y: bottom + 18, "text-anchor": anchor }, label)),
    shape("path", { class: "axis", d: `M${left} ${bottom}H${right}` }),
    text("axis-title", { x: (left + right) / 2, y: height - 8, "text-anchor": "middle" }, chart.x.label),
    text("axis-title", { transform: `translate(12 ${(TOP + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, chart.y.label),
  ];
}

function xLabels(chart, { x, left, right }, from, to) {
  const { categories } = chart.positions;
  if (!categories) {
    const place = (at) => (at > right - 12 ? "end" : "middle");
    return x.ticks.map((tick) => [x(tick), tickText(chart.x.unit, tick, x.step), place(x(tick))]);
  }
  const room = Math.max(3, Math.floor((right - left) / (to - from) / LETTER));
  const short = (name) => (name.length > room ? `${name.slice(0, room - 1)}…` : name);
  return categories.slice(from, to).map((name, i) => [x(from + i + 0.5), short(name), "middle"]);
}

function drawSeries(chart, s, plot, { from, to }, bases, hatch) {
  const series = chart.series[s];
  const group = shape("g", { class: seriesClass(series, s) });
  if (chart.shape === "bars") {
    const fill = series.role === "denied" ? `url(#${hatch})` : "currentColor";
    group.append(shape("path", { class: "bar", fill, d: barPath(chart, s, plot, from, to, bases) }));
    return group;
  }
  const runs = runsOf(series.values, from, to);
  const point = (i, value) => `${plot.x(plot.all[i]).toFixed(1)} ${plot.y(value).toFixed(1)}`;
  const line = runs.map((run) => `M${run.map((i) => point(i, plot.tops[s][i])).join("L")}h0`).join("");
  if (chart.shape === "area") {
    const back = (run) => [...run].reverse().map((i) => point(i, bases[i])).join("L");
    const area = runs.map((run) => `M${run.map((i) => point(i, plot.tops[s][i])).join("L")}L${back(run)}Z`).join("");
    group.append(shape("path", { class: "area", d: area }));
  }
  group.append(shape("path", { class: "line", d: line }));
  return group;
}

function barPath(chart, s, { x, y, all, tops }, from, to, bases) {
  const count = chart.stacked ? 1 : chart.series.length;
  const slot = chart.stacked ? 0 : s;
  const inset = chart.positions.categories ? 0.15 : 0;
  let path = "";
  for (let i = from; i < to; i++) {
    if (!(tops[s][i] > bases[i])) continue;
    const begin = all[i] + inset * (all[i + 1] - all[i]);
    const width = ((all[i + 1] - all[i]) * (1 - 2 * inset)) / count;
    const [left, right] = [x(begin + slot * width), x(begin + (slot + 1) * width)];
    const gap = right - left > 3 ? 1 : 0;
    path += `M${left.toFixed(1)} ${y(bases[i]).toFixed(1)}V${y(tops[s][i]).toFixed(1)}H${(right - gap).toFixed(1)}V${y(bases[i]).toFixed(1)}Z`;
  }
  return path;
}

// Returns the indices with values, in runs without gaps.
function runsOf(values, from, to) {
  const runs = [];
  for (let i = from; i < to; i++) {
    if (values[i] === null || values[i] === undefined) continue;
    if (i > from && values[i - 1] !== null && runs.length) runs[runs.length - 1].push(i);
    else runs.push([i]);
  }
  return runs;
}

function marks(chart, { x, y, left, right, top, bottom }) {
  return chart.marks.flatMap(({ axis, at, label }) => {
    if (axis === "y") {
      return [
        shape("path", { class: "mark", d: `M${left} ${y(at)}H${right}` }),
        shape("text", { class: "label", x: right, y: y(at) - 4, "text-anchor": "end" }, label),
      ];
    }
    if (at < x.min || at > x.max) return [];
    const isLate = x(at) > (left + right) / 2;
    return [
      shape("path", { class: "mark", d: `M${x(at)} ${top}V${bottom}` }),
      shape("text", { class: "label", x: x(at) + (isLate ? -4 : 4), y: top + 10, "text-anchor": isLate ? "end" : "start" }, label),
    ];
  });
}
