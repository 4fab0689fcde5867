// Pages, by the fragment of the address, and the stream of events that all of them show.
import { element } from "./dom.js";
import { Unauthorized, events, get, setToken } from "./api.js";
import { overview } from "./overview.js";
import { limits } from "./limits.js";
import { keys } from "./keys.js";
import { protection } from "./protection.js";
import { refusals } from "./refusals.js";
import { tryPage } from "./try.js";

const PAGES = [
  ["overview", "Overview", overview], ["limits", "Limits", limits], ["refusals", "Refusals", refusals], ["keys", "Keys", keys],
  ["protection", "Protection", protection], ["try", "Try", tryPage],
];
const RETRY_MS = 2000;
const main = document.getElementById("main");
const connection = document.getElementById("connection");
let page = null;
let status = null;
let following = null;

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const found = PAGES.find(([path]) => path === name) ?? PAGES[0];
  const argument = rest.length ? decode(rest.join("/")) : undefined;
  return [found, argument];
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  const [[name, , make], argument] = route();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  page = make(argument);
  document.title = `${page.title} – Ratekeeper`;
  main.replaceChildren(...page.nodes);
  if (status) page.update(status);
}

function connected(text, isBad) {
  connection.textContent = text;
  connection.className = isBad ? "bad" : "";
}

// Follows the events until the page is closed. A token that is rejected leads to the form for one.
async function follow() {
  following?.abort();
  following = new AbortController();
  const { signal } = following;
  while (!signal.aborted) {
    try {
      await events("/v1/events", signal, (next) => {
        status = next;
        connected("live", false);
        page?.update(status);
      });
      connected("disconnected", true);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Unauthorized) return login();
      connected(`disconnected: ${error.message}`, true);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function login(message) {
  connected("token needed", true);
  page = null;
  document.title = "Token – Ratekeeper";
  const field = element("input", { id: "token", type: "password", required: true, autocomplete: "off" });
  const submit = async (event) => {
    event.preventDefault();
    setToken(field.value);
    try {
      await get("/v1/status");
    } catch (error) {
      return login(error.message);
    }
    start();
  };
  main.replaceChildren(
    element("h1", {}, "Admin token"),
    element("form", { class: "line", onsubmit: submit },
      element("label", { for: "token" }, "Token"), field, element("button", { type: "submit" }, "Continue")),
    element("p", { class: "caption" }, "It stays in the memory of this page, and is needed again when the page is loaded again."),
    element("p", { class: "error", role: "alert" }, message ?? ""));
  field.focus();
}

function start() {
  show();
  follow();
}

document.querySelector("nav").append(...PAGES.map(([path, name]) => element("a", { href: `#/${path}` }, name)));
addEventListener("hashchange", () => {
  if (page) show();
  main.focus();
});
start();
