// Charts of what the server's history has.
import { element } from "./dom.js";
import { makeChart } from "./chart.js";
import { get } from "./api.js";

const SPANS = [["5m", "5 minutes"], ["1h", "1 hour"], ["24h", "24 hours"]];

function chart(title, history, y, shape, stacked, series) {
  return {
    title, shape, stacked,
    x: { label: "time (UTC)", unit: "time" },
    y,
    positions: { values: history.at_us },
    series: series.map(([name, role, values]) => ({ name, role, values: values ?? history.at_us.map(() => null) })),
    marks: [],
  };
}

const perSecond = { label: "per second", unit: "number" };
const duration = { label: "at most", unit: "duration" };

export const decisions = (history) => chart("Decisions of limits", history, { ...perSecond, label: "decisions per second" }, "area", true, [
  ["allowed", "admitted", history.decisions.allowed],
  ["refused", "denied", history.decisions.denied],
  ["would be refused (shadow)", "shadow", history.decisions.shadow_denied],
]);

export function protocols(history) {
  const sum = (counts) => counts.allowed.map((_, i) => counts.allowed[i] + counts.denied[i] + counts.error[i] + counts.other[i]);
  const all = Object.entries(history.protocols ?? {}).map(([name, counts]) => [name, "other", sum(counts)]);
  return chart("Requests by protocol", history, { ...perSecond, label: "requests per second" }, "line", false, all);
}

export const latency = (history, what, title) => {
  const of = history.durations_us?.[what];
  return chart(title, history, duration, "line", false, [
    ["p50", "other", of?.p50], ["p95", "other", of?.p95], ["p99", "other", of?.p99],
  ]);
};

// Returns an element with charts that follow the history of all limits, or of one. `makers` turn a history into
// charts; those that return null are left out. Call its `tick` once a second.
export function historyCharts(makers, limit) {
  let span = "5m";
  let charts = null;
  let ticks = 0;
  let loading = false;
  const holder = element("div", {});
  const choice = element("select", { "aria-label": "Time", onchange: () => { span = choice.value; charts = null; load(); } },
    ...SPANS.map(([value, name]) => element("option", { value }, name)));

  async function load() {
    if (loading) return;
    loading = true;
    const asked = span;
    try {
      const history = await get(`/v1/history?span=${span}${limit ? `&limit=${encodeURIComponent(limit)}` : ""}`);
      if (asked === span) draw(makers.map((make) => make(history)).filter((one) => one && one.series.length));
    } catch {
      // The stream of events reports that the server is not there.
    } finally {
      loading = false;
      if (asked !== span) load();
    }
  }

  function draw(all) {
    if (charts && charts.length === all.length) {
      charts.forEach((one, i) => one.update(all[i]));
      return;
    }
    const figures = all.map((one) => element("figure", { class: "chart" }, element("figcaption", {}, one.title)));
    holder.replaceChildren(...figures);
    charts = all.map((one, i) => makeChart(figures[i], one));
  }

  const root = element("div", {}, element("label", { class: "span" }, "Time ", choice), holder);
  root.tick = () => {
    if (span === "5m" || ticks % 10 === 0) load();
    ticks++;
  };
  return root;
}
