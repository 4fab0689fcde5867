// Requests to the server. The token is kept in memory only: it is gone when the page is.
let token = null;

export class Unauthorized extends Error {}

export const setToken = (value) => (token = value || null);

async function send(path, options = {}) {
  const headers = { ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (response.status === 401) throw new Unauthorized("A valid token is needed.");
  if (!response.ok) throw new Error((await response.text()).trim() || `HTTP ${response.status}`);
  return response;
}

// Returns what the server has at a path, which is JSON.
export const get = async (path) => (await send(path)).json();

// Sends JSON and returns JSON.
export const post = async (path, body) => (await send(path, { method: "POST", body: JSON.stringify(body) })).json();

// Calls `onEvent` with every event until `signal` is aborted or the stream ends.
export async function events(path, signal, onEvent) {
  const response = await send(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    // Only the last counts: each event has everything.
    const last = parts.filter((part) => part.startsWith("data: ")).pop();
    if (last) onEvent(JSON.parse(last.slice(6)));
  }
}
