// What would happen: which limits apply to a request, and what a limit does to traffic.
import { element } from "./dom.js";
import { shortText, spanText } from "./format.js";
import { post } from "./api.js";
import { reportNodes } from "./report.js";
import { listing, number } from "./listing.js";

const ALGORITHMS = ["", "token_bucket", "fixed_window", "sliding_log", "sliding_counter", "leaky_bucket", "all"];
const TRAFFIC = ["boundary", "steady", "burst", "poisson", "flash-sale"];

const field = (id, label, attributes) =>
  element("p", { class: "field" }, element("label", { for: id }, label), element("input", { id, autocomplete: "off", spellcheck: "false", ...attributes }));

const choice = (id, label, names, empty) => element("p", { class: "field" }, element("label", { for: id }, label),
  element("select", { id }, ...names.map((name) => element("option", { value: name }, name || empty))));

// Returns a form, what it shows, and what it has. `submit` returns the elements to show.
function form(fields, action, submit) {
  const result = element("div", { "aria-live": "polite" });
  let last = 0;
  const run = async (event) => {
    event.preventDefault();
    const turn = ++last;
    const value = (id) => node.querySelector(`#${id}`).value.trim();
    let nodes;
    try {
      nodes = await submit(value);
    } catch (error) {
      nodes = [element("p", { class: "error", role: "alert" }, error.message)];
    }
    if (turn === last) result.replaceChildren(...nodes);
  };
  const node = element("form", { class: "fields", onsubmit: run }, ...fields, element("p", {}, element("button", { type: "submit" }, action)));
  return [node, result];
}

// Parses lines such as `x-user: ann`.
function headers(text) {
  const all = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`Expected "NAME: VALUE", not "${line}".`);
    const name = line.slice(0, at).trim();
    all[name] = [...(all[name] ?? []), line.slice(at + 1).trim()];
  }
  return all;
}

async function explain(value) {
  const request = { method: value("method") || "GET", path: value("path"), headers: headers(value("headers")) };
  if (value("peer")) request.peer = value("peer");
  return explanation(await post("/v1/explain", { request }));
}

function explanation(found) {
  const applied = found.limits.filter((limit) => limit.applies);
  const others = found.limits.filter((limit) => !limit.applies);
  const refusal = others.find((limit) => limit.refuses);
  const applies = applied.map((limit) => element("tr", {},
    element("th", { scope: "row" }, element("a", { href: `#/limits/${encodeURIComponent(limit.name)}` }, limit.name)),
    element("td", {}, limit.amount),
    element("td", {}, element("a", { href: `#/keys/${encodeURIComponent(limit.key)}` }, limit.key)),
    element("td", {}, limit.mode), ...left(limit)));
  const not = others.map((limit) => element("tr", {}, element("th", { scope: "row" }, limit.name), element("td", {}, limit.reason)));
  const facts = [["Path", found.path], ["Host", found.host], ["Client", found.client], ["Tier", found.tier], ["Class", found.class],
    ...found.identities.map(({ name, value, missing }) => [name, value ?? `missing: ${missing}`]),
    ...found.dependencies.map(({ name, protection }) => [`Dependency ${name}`, protection])];
  return [
    element("p", { class: "verdict" }, verdict(found, applied, refusal)),
    listing("Applies", ["Limit", "Amount", "Key", "Mode"], ["Cost", "Remaining", "Next request"], applies, "No limit applies."),
    not.length ? listing("Does not apply", ["Limit", "Why"], [], not, "") : "",
    listing("The request", ["What", "Value"], [], facts.filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value))), ""),
  ];
}

function left({ cost, state }) {
  if (!state) return [number(shortText(cost)), number("–"), number("–")];
  if (!state.known) return [number(shortText(cost)), number("unknown"), number("unknown")];
  const wait = state.exceeds_capacity ? "never" : state.fits ? "now" : `in ${spanText(state.retry_after_us)}`;
  return [number(shortText(cost)), number(`${shortText(state.remaining)} of ${shortText(state.limit)}`), number(wait)];
}

function verdict(found, applied, refusal) {
  if (found.exempt !== null) return `Exempt by entry ${found.exempt} of "exempt".`;
  if (refusal) return `Would be refused by ${refusal.name}: ${refusal.reason}.`;
  const full = applied.filter(({ state }) => state?.known && !state.fits);
  const enforced = full.find(({ mode }) => mode === "enforced");
  if (enforced) return `Would be refused by ${enforced.name}.`;
  if (full.length) return `Would be allowed; ${full[0].name} would refuse it, but is ${full[0].mode}.`;
  return applied.length ? "Would be allowed." : "Would be allowed: no limit applies.";
}

async function simulate(value) {
  const request = { rate: value("rate"), traffic: value("traffic") };
  for (const name of ["algorithm", "offered", "duration"]) if (value(name)) request[name] = value(name);
  if (value("count")) request.keys = Number(value("count"));
  return reportNodes((await post("/v1/simulate", request)).report);
}

// Returns the page.
export function tryPage() {
  const explaining = form([
    field("method", "Method", { value: "GET" }),
    field("path", "Path", { value: "/", required: true }),
    field("peer", "Client address", { placeholder: "203.0.113.9" }),
    element("p", { class: "field wide" }, element("label", { for: "headers" }, "Headers, one a line"),
      element("textarea", { id: "headers", rows: 3, spellcheck: "false", placeholder: "x-user: ann" })),
  ], "Explain", explain);
  const simulating = form([
    field("rate", "Limit", { value: "10/s", required: true }),
    choice("algorithm", "Algorithm", ALGORITHMS, "default"),
    choice("traffic", "Traffic", TRAFFIC),
    field("offered", "Requests of a key", { placeholder: "twice the limit" }),
    field("duration", "Duration", { placeholder: "10 periods" }),
    field("count", "Keys", { type: "number", min: 1, max: 1000, placeholder: "1" }),
  ], "Simulate", simulate);
  return {
    title: "Try",
    nodes: [element("h1", {}, "Try"),
      element("section", { id: "explain", "aria-label": "Explain a request" }, element("h2", {}, "Explain a request"),
        element("p", { class: "caption" }, "Which limits of the active policy apply, by which keys, and what is left. Nothing is charged."), ...explaining),
      element("section", { id: "simulate", "aria-label": "Simulate a limit" }, element("h2", {}, "Simulate a limit"),
        element("p", { class: "caption" }, "A limit against generated traffic, in virtual time. No limit of the server is affected."), ...simulating)],
    update() {},
  };
}
