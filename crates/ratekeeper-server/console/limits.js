// Every limit: its rule and what it does, and the history of one.
import { element } from "./dom.js";
import { shortText } from "./format.js";
import { decisions, historyCharts } from "./series.js";
import { get } from "./api.js";
import { listing, number, scrollTable } from "./listing.js";

const link = (name) => `#/limits/${encodeURIComponent(name)}`;
const share = (part, all) => (all ? `${((100 * part) / all).toFixed(1)}%` : "–");

function row({ name, rule, mode, last_minute: minute, total }) {
  const all = minute.allowed + minute.denied + minute.shadow_denied;
  return element("tr", {},
    element("th", { scope: "row" }, element("a", { href: link(name) }, name)),
    element("td", {}, rule ?? ""),
    element("td", {}, mode),
    number(`${shortText(all / 60)}/s`),
    number(share(minute.denied, all)),
    number(share(minute.shadow_denied, all)),
    number(share(minute.near_limit, all)),
    number(shortText(total.denied)));
}

const TEXTS = ["Limit", "Rule", "Mode"];
const NUMBERS = ["Requests", "Refused", "Shadow", "Near the limit", "Refused in all"];

function table(limits) {
  if (!limits.length) return element("p", {}, "The policy has no limits.");
  return scrollTable("Limits", TEXTS, NUMBERS, limits.map(row));
}

function keyTable(title, keys) {
  const rows = keys.map(({ limit, key, count, truncated }) => element("tr", {},
    element("td", {}, limit),
    element("td", {}, element("a", { href: `#/keys/${encodeURIComponent(key)}` }, truncated ? `${key}…` : key)),
    number(shortText(count))));
  return listing(title, ["Limit", "Key"], ["Count"], rows, "None yet.");
}

// Returns lists of the hottest and most refused keys, of all limits or of one.
function topKeys(limit) {
  const holder = element("div", { class: "pair" });
  const keep = ({ keys }) => keys.filter((key) => !limit || key.limit === limit).slice(0, 20);
  let ticks = 0;
  async function load() {
    try {
      const top = await get("/v1/top?n=200");
      holder.replaceChildren(keyTable("Hottest keys", keep(top.hottest)), keyTable("Most refused keys", keep(top.most_denied)));
    } catch (error) {
      holder.replaceChildren(element("p", {}, error.message));
    }
  }
  load();
  holder.tick = () => ++ticks % 3 === 0 && load();
  return holder;
}

// Returns the page of all limits, or of the one with this name.
export function limits(name) {
  return name ? oneLimit(name) : allLimits();
}

function allLimits() {
  const list = element("div", {});
  const keys = topKeys(null);
  return {
    title: "Limits",
    nodes: [element("h1", {}, "Limits"), element("p", { class: "caption" }, "Shares are of the requests of the last minute."), list, keys],
    update(status) {
      const focused = list.querySelector("a:focus")?.getAttribute("href");
      list.replaceChildren(table(status.limits));
      if (focused) [...list.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
      keys.tick();
    },
  };
}

function oneLimit(name) {
  const rule = element("p", {});
  const list = element("div", {});
  const charts = historyCharts([decisions], name);
  const keys = topKeys(name);
  return {
    title: name,
    nodes: [element("p", {}, element("a", { href: "#/limits" }, "All limits")), element("h1", {}, name), rule, list, charts, keys],
    update(status) {
      const limit = status.limits.find((one) => one.name === name);
      rule.textContent = limit ? "" : "The policy has no limit of this name.";
      list.replaceChildren(table(limit ? [limit] : []));
      if (limit?.has_history) charts.tick();
      keys.tick();
    },
  };
}
