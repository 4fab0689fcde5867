// What protects services: limits with permits, load shedding, dependencies, upstreams.
import { element } from "./dom.js";
import { shortText, spanText } from "./format.js";
import { listing, number } from "./listing.js";

const waits = (us, quantile) => number(us ? `≤ ${spanText(us[quantile])}` : "–");

// Returns text for the growth of a counter in a second, by its name. Counters are compared with the status before.
function rates() {
  let before = { at: 0, counts: new Map() };
  let now = null;
  const rate = (name, count) => {
    now.counts.set(name, count);
    const elapsed = (now.at - before.at) / 1e6;
    const grown = Math.max(0, count - (before.counts.get(name) ?? count));
    return number(before.at && elapsed > 0 ? `${shortText(grown / elapsed)}/s` : "–");
  };
  return {
    begin(at) { now = { at, counts: new Map() }; },
    rate,
    end() { before = now; },
  };
}

function permitCells(name, of, { rate }) {
  return [
    number(shortText(of.permits)), number(shortText(of.in_flight)), number(shortText(of.waiting)),
    rate(`${name} full`, of.queue_full), rate(`${name} timeout`, of.queue_timeout),
    waits(of.waits_us, "p50"), waits(of.waits_us, "p99"),
  ];
}

const PERMITS = ["Permits", "In flight", "Waiting", "Queue full", "Waited in vain", "p50 of waits", "p99 of waits"];

function concurrency(limits, meter) {
  const rows = limits.map((of) => element("tr", {},
    element("th", { scope: "row" }, element("a", { href: `#/limits/${encodeURIComponent(of.limit)}` }, of.limit)),
    element("td", { class: "long" }, of.rule ?? ""),
    ...permitCells(`limit ${of.limit}`, of, meter)));
  return listing("Limits with permits", ["Limit", "Rule"], PERMITS, rows,
    "No limit of the policy is adaptive or has a queue, or none has had a request yet.");
}

function shedding(classes, { rate }) {
  const rows = classes.map((of) => element("tr", {},
    element("th", { scope: "row" }, of.class),
    element("td", {}, of.shed_share > 0 ? "sheds" : "admits all"),
    number(`${(100 * of.shed_share).toFixed(0)}%`),
    rate(`admitted ${of.class}`, of.admitted), rate(`shed ${of.class}`, of.shed), number(shortText(of.shed))));
  return listing("Load shedding", ["Class", "Now"], ["Share shed", "Admitted", "Shed", "Shed in all"], rows,
    "The policy sheds no requests.");
}

function dependencies(all, meter) {
  const havePermits = all.some((of) => of.concurrency);
  const haveUpstreams = all.some((of) => of.upstream);
  const rows = all.map((of) => {
    const name = `dependency ${of.name} ${of.upstream ?? ""}`;
    return element("tr", {},
      element("th", { scope: "row" }, of.name),
      haveUpstreams ? element("td", {}, of.upstream ?? "") : null,
      element("td", { class: of.breaker === "open" ? "bad" : null }, of.breaker ?? "none"),
      number(of.breaker === null ? "–" : shortText(of.breaker_opened)),
      meter.rate(`${name} admitted`, of.admitted), meter.rate(`${name} limited`, of.rate_limited),
      of.breaker === null ? number("–") : meter.rate(`${name} open`, of.breaker_rejected),
      ...(of.concurrency ? permitCells(name, of.concurrency, meter) : havePermits ? PERMITS.map(() => number("–")) : []));
  });
  return listing("Dependencies", ["Dependency", ...(haveUpstreams ? ["Upstream"] : []), "Breaker"],
    ["Opened", "Admitted", "Over the rate", "Breaker open", ...(havePermits ? PERMITS : [])], rows, "The policy has no dependencies.");
}

function upstreams(all) {
  const rows = all.map((of) => element("tr", {},
    element("th", { scope: "row" }, of.name),
    element("td", { class: of.is_up ? null : "bad" }, !of.is_up ? "gets no requests" : of.is_failing ? "up, the last request failed" : "up"),
    number(shortText(of.connections))));
  return listing("Upstreams", ["Upstream", "State"], ["Connections in use"], rows, "");
}

// Returns the page.
export function protection() {
  const meter = rates();
  const tables = element("div", {});
  return {
    title: "Protection",
    nodes: [element("h1", {}, "Protection"),
      element("p", { class: "caption" }, "Rates are those of the last update. Waits are of all requests since the start that had to wait."),
      tables],
    update({ at_us: at, protection: now }) {
      meter.begin(at);
      const sections = [
        now.upstreams ? upstreams(now.upstreams) : null, concurrency(now.concurrency, meter),
        shedding(now.shedding, meter), dependencies(now.dependencies, meter),
      ];
      meter.end();
      // What is used stays as it is.
      if (!tables.contains(document.activeElement)) tables.replaceChildren(...sections.filter(Boolean));
    },
  };
}
