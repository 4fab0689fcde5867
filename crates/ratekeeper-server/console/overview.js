// What the server does now, and what needs attention first.
import { element } from "./dom.js";
import { shortText, spanText, timeText } from "./format.js";
import { decisions, historyCharts, latency, protocols } from "./series.js";

const fact = (label, value, note) =>
  element("div", {}, element("dt", {}, label), element("dd", {}, value), note ? element("p", {}, note) : null);

const last = (column) => (column?.length ? column[column.length - 1] : 0);

function attention(items) {
  if (!items.length) return element("p", { class: "calm" }, "Nothing needs attention.");
  return element("ul", { class: "attention" }, ...items.map((item) =>
    element("li", { class: item.urgency },
      element("strong", {}, item.urgency),
      element("span", {}, item.text, item.limit ? " " : null,
        item.limit ? element("a", { href: `#/limits/${encodeURIComponent(item.limit)}` }, "Show it") : null),
      item.details ? element("pre", { tabindex: 0 }, item.details) : null)));
}

function storeFacts({ state, breaker, memory, fallback, leases }) {
  return [
    fact("Store", state, breaker ? `circuit breaker ${breaker}` : null),
    memory ? fact("Keys", shortText(memory.keys), `${shortText(memory.evictions)} evicted`) : null,
    fallback ? fact("Nodes", String(fallback.nodes), `${shortText(fallback.local + fallback.open + fallback.closed)} decisions without the store`) : null,
    leases ? fact("Leased keys", shortText(leases.keys), `${shortText(leases.local)} decided by leases`) : null,
  ];
}

function facts(status) {
  const { second, policy } = status;
  const took = second?.durations_us?.request ?? second?.durations_us?.store;
  const p99 = last(took?.p99);
  const age = Math.max(0, status.at_us - policy.loaded_at_us);
  return [
    fact("Allowed", `${shortText(last(second?.decisions.allowed))}/s`),
    fact("Refused", `${shortText(last(second?.decisions.denied))}/s`),
    fact("Would be refused", `${shortText(last(second?.decisions.shadow_denied))}/s`, "shadow mode"),
    fact("p99", p99 ? `≤ ${spanText(p99)}` : "–", second?.durations_us?.request ? "requests" : "store"),
    ...storeFacts(status.store),
    fact("Policy", `version ${policy.version}`, `loaded ${spanText(age)} ago, ${timeText(policy.loaded_at_us)}`),
  ].filter(Boolean);
}

// Returns the page. `update` shows a status.
export function overview() {
  const alerts = element("section", { "aria-label": "Needs attention", "aria-live": "polite" });
  const numbers = element("dl", { class: "facts" });
  const charts = historyCharts([
    decisions, protocols, (history) => (history.durations_us?.request ? latency(history, "request", "Duration of requests") : null),
    (history) => latency(history, "store", "Duration of calls to the store"),
  ]);
  let shown = "";
  return {
    title: "Overview",
    nodes: [element("h1", {}, "Overview"), alerts, numbers, charts],
    update(status) {
      const text = JSON.stringify(status.attention);
      if (text !== shown) alerts.replaceChildren(attention(status.attention));
      shown = text;
      numbers.replaceChildren(...facts(status));
      charts.tick();
    },
  };
}
