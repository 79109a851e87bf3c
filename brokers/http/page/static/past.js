// The past of one bundle: its load over the last hour as a curve, and its records.

import { call } from "./api.js";
import { colour } from "./strip.js";
import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { ago, dated, number, percent, plural, time } from "./words.js";

const [WIDE, HIGH] = [600, 90];
const [MINUTE_MS, HOUR_MS] = [60_000, 3_600_000];

// Points of one broker and of minutes that follow one another are one line.
function* pieces(loads) {
  let piece = [];
  for (const [at, broker, cost] of loads) {
    const last = piece.at(-1);
    if (last && (last.broker !== broker || at - last.at > 150_000)) {
      yield piece;
      piece = [];
    }
    piece.push({ at, broker, cost });
  }
  if (piece.length) yield piece;
}

function Curve({ loads, brokers }) {
  const most = Math.max(...loads.map(([, , cost]) => cost));
  const until = Math.max(Date.now(), loads.at(-1)[0]);
  const span = Math.min(HOUR_MS, Math.max(5 * MINUTE_MS, until - loads[0][0]));
  const x = (at) => (WIDE * (at - until + span)) / span;
  const y = (cost) => HIGH - 4 - ((HIGH - 8) * cost) / (most || 1);
  const label = `Load over the last hour, at most ${percent(most)} of a core, now ${percent(loads.at(-1)[2])}`;
  return html`<svg class="curve" viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label=${label}>
      ${[...pieces(loads)].map((piece) => html`<polyline fill="none" stroke-width="2.5" stroke-linecap="round" vector-effect="non-scaling-stroke"
        stroke=${colour(brokers[piece[0].broker]?.number, 11)}
        points=${[...piece, { ...piece.at(-1), at: Math.min(until, piece.at(-1).at + MINUTE_MS) }].map(({ at, cost }) => `${x(at)},${y(cost)}`).join(" ")} />`)}</svg>
    <p class="soft">From ${ago(span)} to now. At most ${percent(most)} of a core. Colour: owner.</p>`;
}

async function topicsOf(namespace, range) {
  try {
    return await call("GET", `admin/v2/non-persistent/${namespace}?${new URLSearchParams({ bundle: range })}`);
  } catch {
    return []; // Services that are no topics have none.
  }
}

// `changed`: asks again when it does.
export function Past({ name, changed, brokers }) {
  const [past, setPast] = useState(null);
  useEffect(() => {
    let isOpen = true;
    const [namespace, range] = [name.slice(0, name.lastIndexOf("/")), name.slice(name.lastIndexOf("/") + 1)];
    call("GET", `v1/bundle/${name}/history`)
      .then(async (found) => ({ ...found, topics: await topicsOf(namespace, range) }))
      .catch((problem) => ({ problem: problem.message }))
      .then((found) => isOpen && setPast(found));
    return () => {
      isOpen = false;
    };
  }, [name, changed]);
  if (!past) return html`<p class="soft">Reading its history.</p>`;
  if (past.problem) {
    return html`<p class="alarmed">${past.problem}. To read a long log: <code>equipoise channel why ${name}</code></p>`;
  }
  return html`<h3>Load</h3>
    ${past.loads.length > 0 ? html`<${Curve} loads=${past.loads} brokers=${brokers} />` : html`<p class="soft">No report of the last hour has it.</p>`}
    ${past.topics.length > 0 && html`<h3>${plural(past.topics.length, "topic")}</h3><ul class="moves">${past.topics.map((topic) => html`<li key=${topic}>${topic}</li>`)}</ul>`}
    <h3>History</h3>
    <ol class="moves" tabindex="0" aria-label="History">
      ${past.ending.map((line) => html`<li>now ${line}</li>`)}
      ${past.records.toReversed().map((row) => html`<li key=${row.offset} class=${row.refused ? "alarmed" : ""}>
        <time datetime=${new Date(row.at_ms).toISOString()}>${time(row.at_ms)}</time> <span class="soft">${row.offset}</span> ${row.lines[0]}
        ${row.lines.slice(1).map((line) => html`<small>${dated(line)}</small>`)}</li>`)}
      ${past.left_out > 0 && html`<li class="soft">${plural(past.left_out, "older record")} ${past.left_out === 1 ? "is" : "are"} left out.</li>`}
      ${past.known_from > 0 && html`<li class="soft">The log begins after offset ${number(past.known_from)}.</li>`}</ol>`;
}
