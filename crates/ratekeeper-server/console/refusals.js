// Recent refusals, and why one request was refused.
import { element } from "./dom.js";
import { shortText, spanText, timeText } from "./format.js";
import { get } from "./api.js";
import { listing } from "./listing.js";

const OUTCOMES = [["", "refused or would be"], ["denied", "refused"], ["shadow_denied", "would be refused (shadow)"], ["allowed", "samples of admissions"]];
const SINCE = [["", "any time"], ["1m", "the last minute"], ["10m", "the last 10 minutes"], ["1h", "the last hour"]];
const SHOWN = 100;
const outcomeText = (outcome) => ({ denied: "refused", shadow_denied: "would be refused", allowed: "allowed" })[outcome] ?? outcome;

function row(refusal) {
  const { at_us: at, request_id: id, outcome, limit, key, message, protocol } = refusal;
  return element("tr", {},
    element("td", {}, timeText(at)),
    element("th", { scope: "row" }, element("a", { href: `#/limits/${encodeURIComponent(limit)}` }, limit)),
    element("td", {}, outcomeText(outcome)),
    element("td", {}, keyNode(refusal, key)),
    element("td", {}, protocol),
    element("td", { class: "long" }, element("a", { href: `#/refusals/${encodeURIComponent(id)}` }, message)));
}

function keyNode({ key_hashed: hashed, key_truncated: truncated }, key) {
  if (key === null) return "not kept";
  if (hashed || truncated) return truncated ? `${key}…` : key;
  return element("a", { href: `#/keys/${encodeURIComponent(key)}` }, key);
}

// Returns a table of refusals.
export const refusalList = (all, empty) =>
  listing("Latest refusals", ["Time (UTC)", "Limit", "Outcome", "Key", "By", "Why"], [], all.map(row), empty);

// Returns the page of all refusals, or of the request with this id.
export const refusals = (id) => (id ? oneRequest(id) : list());

function list() {
  const select = (id, label, values) => element("p", { class: "field" }, element("label", { for: id }, label),
    element("select", { id, onchange: () => load() }, ...values.map(([value, name]) => element("option", { value }, name))));
  const text = (id, label) => element("p", { class: "field" }, element("label", { for: id }, label),
    element("input", { id, autocomplete: "off", spellcheck: "false", oninput: () => load() }));
  const filters = element("form", { class: "fields", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    text("limit", "Limit"), text("key", "Key"), select("outcome", "Outcome", OUTCOMES), select("since", "Since", SINCE));
  const paused = element("input", { type: "checkbox", id: "paused" });
  const holder = element("div", {});
  const about = element("p", { class: "caption", role: "status" });
  let shown = "";
  let turn = 0;

  async function load() {
    const current = ++turn;
    const query = new URLSearchParams({ n: SHOWN });
    for (const id of ["limit", "key", "outcome", "since"]) {
      const value = filters.querySelector(`#${id}`).value.trim();
      if (value) query.set(id, value);
    }
    try {
      const found = await get(`/v1/refusals?${query}`);
      if (current === turn) show(found);
    } catch (error) {
      if (current === turn) holder.replaceChildren(element("p", { class: "error" }, error.message));
      shown = "";
    }
  }

  function show({ refusals: all, matching, recorded, sampled_out: sampledOut, dropped }) {
    about.textContent = `${shortText(Math.min(all.length, matching))} of ${shortText(matching)} that match. ` +
      `${shortText(recorded)} were recorded, ${shortText(sampledOut + dropped)} left out because there were too many at once.`;
    const text = JSON.stringify(all);
    if (text === shown) return;
    shown = text;
    // The link that has the focus keeps it.
    const focused = holder.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    holder.replaceChildren(refusalList(all, "Nothing that matches."));
    if (focused) [...holder.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
  }

  load();
  let ticks = 0;
  return {
    title: "Refusals",
    nodes: [element("h1", {}, "Refusals"), filters,
      element("p", { class: "line" }, paused, element("label", { for: "paused" }, "Pause the list")), about, holder],
    update() {
      if (!paused.checked && ++ticks % 2 === 0) load();
    },
  };
}

function oneRequest(id) {
  const rate = element("input", { id: "rate", autocomplete: "off", spellcheck: "false", placeholder: "200/minute" });
  const holder = element("div", { "aria-live": "polite" });
  const form = element("form", { class: "line", onsubmit: (event) => { event.preventDefault(); load(); } },
    element("label", { for: "rate" }, "What if the rate were"), rate, element("button", { type: "submit" }, "Decide again"));

  async function load() {
    const query = rate.value.trim() ? `?rate=${encodeURIComponent(rate.value.trim())}` : "";
    try {
      const { refusals: found } = await get(`/v1/refusals/${encodeURIComponent(id)}${query}`);
      holder.replaceChildren(...found.map(details));
    } catch (error) {
      holder.replaceChildren(element("p", { class: "error" }, error.message));
    }
  }

  load();
  return {
    title: "Refusal",
    nodes: [element("p", {}, element("a", { href: "#/refusals" }, "All refusals")), element("h1", {}, `Request ${id}`), form, holder],
    update() {},
  };
}

function details(refusal) {
  const { rule, decision, state, again, what_if: whatIf } = refusal;
  const facts = [
    ["Time", refusal.at], ["Outcome", outcomeText(refusal.outcome)],
    ["Limit", element("a", { href: `#/limits/${encodeURIComponent(refusal.limit)}` }, refusal.limit)],
    ["Rule", rule ? `${rule.file}:${rule.line}` : "sent by the caller"], ["Rate", refusal.rate],
    ["Key", keyNode(refusal, refusal.key)], ["Cost", refusal.cost], ["State before", state?.words],
    ["Remaining", decision ? `${shortText(decision.remaining)} of ${shortText(decision.limit)}` : null],
    ["Would have passed", refusal.passes_at ? `${refusal.passes_at}, ${spanText(refusal.passes_at_us - refusal.at_us)} later` : decision?.exceeds_capacity ? "never: it costs more than the limit allows at once" : null],
    ["Decided again", again ? (again.same ? "the recorded state leads to the same decision, bit for bit" : "the recorded state leads to another decision") : "not possible: the state is not known"],
    ["What if", whatIf ? whatIf.message ?? whatIf.why : null],
    ["Without the store", refusal.degraded ? "yes, by the failure mode" : null],
    ["By", `${refusal.protocol}, policy version ${refusal.policy_version}`],
  ];
  return element("section", {}, element("p", { class: "verdict" }, refusal.message),
    listing("Details", ["What", "Value"], [], facts.filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", { class: "long" }, typeof value === "number" ? String(value) : value))), ""));
}
