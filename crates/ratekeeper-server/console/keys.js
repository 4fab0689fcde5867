// One key in every limit: what is left, when it resets, and starting it afresh.
import { element } from "./dom.js";
import { shortText, spanText } from "./format.js";
import { get, post } from "./api.js";
import { number, scrollTable } from "./listing.js";
import { refusalList } from "./refusals.js";

const wait = (us) => (us === null || us === undefined ? "–" : us === 0 ? "now" : `in ${spanText(us)}`);

// Returns the page, with a key to look up if there is one.
export function keys(key) {
  const field = element("input", { id: "key", name: "key", required: true, autocomplete: "off", spellcheck: "false", value: key ?? "" });
  const result = element("div", { "aria-live": "polite" });
  const form = element("form", { class: "line", onsubmit: (event) => { event.preventDefault(); find(); } },
    element("label", { for: "key" }, "Key"), field, element("button", { type: "submit" }, "Look up"));
  const dialog = element("dialog", { "aria-label": "Reset a key" });

  async function find() {
    try {
      const found = await post("/v1/keys", { key: field.value });
      const { refusals } = await get(`/v1/refusals?n=20&key=${encodeURIComponent(field.value)}`);
      result.replaceChildren(table(found), refusalList(refusals, "None is in the log."));
    } catch (error) {
      result.replaceChildren(element("p", { class: "error" }, error.message));
    }
  }

  function table({ limits }) {
    if (!limits.length) return element("p", {}, "No limit counts by one identity. Use a whole key, as the lists under Limits show it.");
    const rows = limits.map((state) => element("tr", {},
      element("th", { scope: "row" }, state.limit),
      element("td", {}, state.key),
      element("td", {}, state.amount),
      element("td", {}, !state.known ? "the store did not respond" : !state.is_used ? "not used" : state.allowed ? "allows" : "refuses"),
      number(state.known ? `${shortText(state.remaining)} of ${shortText(state.capacity)}` : "–"),
      number(state.allowed ? "–" : wait(state.retry_after_us)),
      number(state.is_used ? wait(state.reset_after_us) : "–"),
      element("td", { class: "number" }, state.is_used ? element("button", { type: "button", class: "reset-key", "aria-label": `Reset in ${state.limit}`, onclick: () => confirmReset(state.key, state.limit) }, "Reset") : null)));
    return scrollTable("State", ["Limit", "Key", "Amount", "Now"], ["Remaining", "Next request", "Full again", "Reset"], rows);
  }

  function confirmReset(looked, limit) {
    const yes = element("button", { type: "button", class: "danger", onclick: () => { dialog.close(); reset(looked, limit); } }, "Reset");
    dialog.replaceChildren(
      element("p", {}, "Forget all usage of the key ", element("strong", {}, looked), " in the limit ", element("strong", {}, limit), "? It starts afresh at once."),
      element("p", { class: "line" }, yes, element("button", { type: "button", onclick: () => dialog.close() }, "Cancel")));
    dialog.showModal();
  }

  async function reset(looked, limit) {
    try {
      await post("/v1/keys/reset", { key: looked, limit });
      await find();
    } catch (error) {
      result.prepend(element("p", { class: "error" }, error.message));
    }
  }

  if (key) find();
  return {
    title: "Keys",
    nodes: [element("h1", {}, "Keys"),
      element("p", { class: "caption" }, "A key is what a limit counts by, as the lists under Limits show it, such as user=ann. The value alone is enough where a limit counts by one identity. Looking it up charges nothing."),
      form, result, dialog],
    update() {},
  };
}
