// Chooses the moment that the page shows: a slider over the offsets of the log.

import { html, useState } from "./vendor/preact-htm.js";
import { date, number } from "./words.js";

// `last`: of the cluster when the page left it. `cluster`: of what it shows now.
export function Moment({ at, last, cluster, link, go }) {
  const [aim, setAim] = useState(null); // Where the slider is while it moves.
  const first = cluster.first ?? last;
  const words = link.is === "past" ? `The past: ${date(cluster.at_ms)}, offset ${number(cluster.offset)}` : `Offset ${number(aim ?? at)}`;
  const move = (event) => {
    setAim(null);
    go(Number(event.target.value));
  };
  return html`<section class="moment" aria-labelledby="moment">
    <h2 id="moment">${words} <button onClick=${() => go(null)}>Back to live</button></h2>
    ${link.is === "lost" ? html`<p class="failed" role="alert">${link.sentence}. The page shows ${cluster.first ? "another moment" : "the last live state"}: ${date(cluster.at_ms)}.</p>`
      : html`<p class="soft">The page shows the cluster as it was when the log ended here. Nothing can be changed in the past.</p>`}
    <input type="range" min=${first.offset} max=${last.offset} value=${aim ?? at} aria-label="Offset" aria-valuetext=${words}
      onInput=${(event) => setAim(Number(event.target.value))} onChange=${move} />
    <p class="ends soft"><span>${date(first.at_ms)}</span><span>${date(last.at_ms)}</span></p>
  </section>`;
}
