// The view of one namespace, or of a part of its hash space.

import { Act } from "./actions.js";
import { namesOf, stripLabel, toBundle, toNamespace } from "./cluster.js";
import { HASH_END, Strip, colour, spanOf } from "./strip.js";
import { html } from "./vendor/preact-htm.js";
import { hex, number, percent, plural } from "./words.js";

const SPAN_MIN = 16;

// Returns a part of the hash space of a size around a middle.
function around(middle, size) {
  const span = Math.max(SPAN_MIN, Math.min(HASH_END + 1, Math.round(size)));
  const first = Math.max(0, Math.min(HASH_END + 1 - span, Math.round(middle - span / 2)));
  return [first, Math.min(HASH_END, first + span)];
}

export function Namespace({ name, low, high, sections }) {
  const rows = sections.focus ?? {};
  const about = rows[""];
  const brokers = sections.brokers ?? {};
  const servers = namesOf(brokers);
  const go = (part) => { location.hash = toNamespace(name, ...part); };
  const isShown = about && about.namespace === name && about.low === low && about.high === high;
  const frozen = sections.controls?.freezes?.find((each) => each.namespace === name);
  const whole = sections.namespaces?.[name];
  if (about?.problem && about.namespace === name) {
    return html`<section><h2>${name}</h2><p class="empty">${about.problem}. <a href="#/">See all namespaces.</a></p></section>`;
  }
  const listed = Object.entries(rows).filter(([bundle]) => bundle).sort((one, other) => one[1][0] - other[1][0]);
  const most = Math.max(...listed.map(([, row]) => row[5]), 1e-9);
  const part = [(100 * low) / HASH_END, (100 * (high - low)) / HASH_END];
  const span = spanOf(low, high);
  const middle = low + span / 2;
  return html`<section aria-labelledby="namespace">
    <h2 id="namespace">${name} <${Act} of=${frozen ? "unfreeze" : "freeze"} on=${name} /></h2>
    ${frozen && html`<p>Frozen: ${frozen.reason}</p>`}
    ${whole && html`<p class="soft">${plural(whole.bundles, "bundle")}, ${percent(whole.cost)} of a core, ${whole.moving} moving, ${number(whole.free)} without an owner</p>
      <${Strip} encoded=${whole.strip} names=${servers} label=${stripLabel(name, whole)}
        onPick=${(first, last) => go([first, last])} />
      <div class="window"><i style=${{ left: `${part[0]}%`, width: `max(3px, ${part[1]}%)` }}></i></div>`}
    <p class="zoom">
      <button onClick=${() => go(around(middle, span / 4))} disabled=${span <= SPAN_MIN}>Zoom in</button>
      <button onClick=${() => go(around(middle, span * 4))} disabled=${span > HASH_END}>Zoom out</button>
      <button onClick=${() => go(around(middle - span / 2, span))} disabled=${low <= 0} aria-label="Go left">←</button>
      <button onClick=${() => go(around(middle + span / 2, span))} disabled=${high >= HASH_END} aria-label="Go right">→</button>
      <button onClick=${() => { location.hash = toNamespace(name); }} disabled=${span > HASH_END}>Whole</button>
      <span class="soft">${hex(low)} to ${hex(high)}${isShown && `: ${plural(about.bundles, "bundle")}`}</span>
    </p>
    ${isShown
      ? html`<${Strip} tall encoded=${about.strip} low=${low} high=${high} names=${servers}
          label=${`${name} from ${hex(low)} to ${hex(high)}`}
          onPick=${(first, last) => go([first, last])}
          onZoom=${(at, closer) => go(around(at, closer ? span / 2 : span * 2))} />`
      : html`<p class="soft">Loading.</p>`}
    ${isShown && listed.length === 0 && html`<p class="soft">Zoom in to see single bundles.</p>`}
    ${isShown && listed.length > 0 && html`<div class="wide"><table>
      <thead><tr><th scope="col">bundle</th><th scope="col">owner</th><th scope="col">state</th>
        <th scope="col" class="bars">load</th><th scope="col" class="figure">token</th></tr></thead>
      <tbody>${listed.map(([bundle, [first, last, server, phase, token, cost]]) => html`<tr key=${bundle}>
        <th scope="row"><a href=${toBundle(bundle)}><code>${hex(first)}_${hex(last)}</code></a></th>
        <td><span class="swatch" style=${{ background: colour(server) }}></span> ${servers[server] ?? "nobody"}</td>
        <td class=${phase === "free" ? "alarmed" : ""}>${phase.replace("_", " ")}</td>
        <td class="bars"><div class="bar"><i style=${{ width: `${(100 * cost) / most}%`, background: colour(server, 11) }}></i></div>
          <span class="said">${percent(cost)} of a core</span></td>
        <td class="figure">${number(token)}</td></tr>`)}</tbody></table></div>`}
  </section>`;
}
