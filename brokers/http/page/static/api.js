// Talks to the broker that served this page, and to nobody else.

const ROOT = new URL("../", import.meta.url); // The page may be mounted below any path.
const TOKEN = "equipoise-token";
const SILENCE_MS = 25_000; // A stream sends something every 10 s.

export const readToken = () => sessionStorage.getItem(TOKEN) ?? "";
export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);

// What a broker answered, or why it did not: a sentence for people.
export class Problem extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

async function request(method, path, { body, headers, signal } = {}) {
  const token = readToken();
  try {
    return await sent(method, path, { body, headers, signal, token });
  } catch {
    throw new Problem(0, "the broker does not answer, or the connection broke");
  }
}

function sent(method, path, { body, headers, signal, token }) {
  return fetch(new URL(path, ROOT), {
    method,
    signal,
    cache: "no-store",
    headers: {
      ...(token && { Authorization: `Bearer ${token}` }),
      ...(body !== undefined && { "Content-Type": "application/json" }),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
}

async function checked(response) {
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new Problem(response.status, answer.reason ?? `the broker answers ${response.status}`);
}

// Sends one request, and returns its JSON, or that of an unload; null if it has none.
export async function call(method, path, body) {
  const response = await checked(await request(method, path, { body }));
  const text = response.headers.get("X-Unload-Outcome") ?? (await response.text());
  return text ? JSON.parse(text) : null;
}

// Calls `got` with the name and the data of each event until the stream ends.
export async function follow(path, got, signal) {
  const silent = new AbortController();
  const either = AbortSignal.any([signal, silent.signal]);
  let timer = setTimeout(() => silent.abort(), SILENCE_MS);
  try {
    const headers = { Accept: "text/event-stream" };
    const response = await checked(await request("GET", path, { headers, signal: either }));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE_MS);
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        const fields = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/s)));
        if (fields.data) got(fields.event, JSON.parse(fields.data));
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

// Applies changes to sections. A row of null is gone.
export function merged(sections, changes) {
  const all = { ...sections };
  for (const [section, rows] of Object.entries(changes)) {
    const kept = { ...all[section], ...rows };
    for (const key of Object.keys(rows)) if (rows[key] === null) delete kept[key];
    all[section] = kept;
  }
  return all;
}
