// Tables of what a server does.
import { element } from "./dom.js";

export const number = (text) => element("td", { class: "number" }, text);

// Returns a table in a box that scrolls, for the rows that are given.
export function scrollTable(label, texts, numbers, rows) {
  const head = [...texts.map((name) => element("th", { scope: "col" }, name)),
    ...numbers.map((name) => element("th", { scope: "col", class: "number" }, name))];
  return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, element("table", {},
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
}

// Returns a section with a heading and a table, or with `empty` if there are no rows.
export function listing(title, texts, numbers, rows, empty) {
  return element("section", {}, element("h2", {}, title),
    rows.length ? scrollTable(title, texts, numbers, rows) : element("p", { class: "calm" }, empty));
}
