// The views of the whole cluster: what is wrong, brokers, namespaces, moves, decisions.

import { Act } from "./actions.js";
import { Strip, colour } from "./strip.js";
import { html } from "./vendor/preact-htm.js";
import { ago, dated, duration, number, percent, plural, time } from "./words.js";

export const namespaceOf = (bundle) => bundle.split("/").slice(0, 2).join("/");

export const toNamespace = (name, low, high) =>
  `#/namespace/${name}` + (low === undefined ? "" : `?low=${low}&high=${high}`);

export const toBundle = (bundle) => `#/bundle/${bundle}`;

export const namesOf = (brokers) =>
  Object.fromEntries(Object.entries(brokers).map(([name, broker]) => [broker.number, name]));

export const Swatch = ({ of }) => html`<span class="swatch" style=${{ background: colour(of) }}></span>`;

const SIGNS = { bad: "●", warn: "▲", note: "■" };
const SIGN_WORDS = { bad: "problem", warn: "warning", note: "note" };

export function Problems({ problems, controls, isNow }) {
  const rows = Object.keys(problems).sort().map((key) => problems[key]);
  return html`<section aria-labelledby="problems">
    <h2 id="problems">${isNow ? "What is wrong now" : "What was wrong"} <${Act} of=${controls?.pause ? "resume" : "pause"} /></h2>
    ${rows.length === 0
      ? html`<p class="fine">Nothing: every bundle ${isNow ? "has an owner, and all brokers report" : "had an owner"}.</p>`
      : html`<ul class="problems">${rows.map(
          ({ level, text, remedy }) => html`<li class=${level} key=${text}>
            <span role="img" aria-label=${SIGN_WORDS[level]}>${SIGNS[level]}</span>
            <div><strong>${text}</strong><p>${remedy}</p></div></li>`,
        )}</ul>`}
  </section>`;
}

// A scale that fits the busiest broker: 1, 2 or 5 times a power of ten, at most the whole broker.
function scaleFor(parts) {
  const most = Math.max(0.001, ...parts);
  const step = 10 ** Math.floor(Math.log10(most));
  const fit = [1, 2, 5, 10].map((each) => each * step).find((each) => each >= most * 0.999);
  return most > 1 ? fit : Math.min(1, fit);
}

function state(broker) {
  if (broker.status === "down") return "dead";
  if (broker.suspect) return "late";
  if (broker.maintenance) return "maintenance";
  return broker.status === "up" ? "" : broker.status;
}

export function Brokers({ brokers }) {
  const names = Object.keys(brokers).sort((one, other) =>
    one.localeCompare(other, "en", { numeric: true }));
  const live = names.map((name) => brokers[name]).filter((each) => each.cost !== undefined && each.cost !== null);
  const cores = live.reduce((sum, each) => sum + each.cores, 0);
  const mean = cores ? live.reduce((sum, each) => sum + each.cost, 0) / cores : 0;
  const scale = scaleFor(live.flatMap((each) => [each.cost / each.cores, each.use ?? 0]));
  const wide = (part) => ({ width: `${Math.min(100, (100 * part) / scale)}%` });
  return html`<section aria-labelledby="brokers">
    <h2 id="brokers">Brokers</h2>
    <p class="soft">Full: load of the bundles. Pale: all use of the broker. Line: mean load,
      ${" "}${percent(mean)}. A whole bar is ${percent(scale)} of a broker.</p>
    <div class="wide"><table>
      <thead><tr><th scope="col">broker</th><th scope="col" class="bars">load</th>
        <th scope="col" class="figure">bundles</th><th scope="col" class="figure">cores</th>
        <th scope="col">version</th><th scope="col">domain</th></tr></thead>
      <tbody>${names.map((name) => {
        const broker = brokers[name];
        const load = broker.cost === null ? null : broker.cost / broker.cores;
        const said = load === null ? "load unknown"
          : `load ${percent(load)}, use ${percent(broker.use)}, mean ${percent(mean)}`;
        return html`<tr key=${name} class=${broker.status}>
          <th scope="row"><span class="name"><${Swatch} of=${broker.number} /> ${name}</span>
            ${broker.leader && html` <span class="tag">leader</span>`}
            ${state(broker) && html` <span class="tag alarm">${state(broker)}</span>`}
            ${broker.status === "up" && html` <${Act} of=${broker.maintenance ? "ending" : "maintenance"} on=${name} />`}
            ${broker.maintenance && html`<small>${broker.maintenance}</small>`}</th>
          <td class="bars"><div class="bar" role="img" aria-label=${said} title=${said}>
            ${load !== null && html`
              <i class="use" style=${{ ...wide(Math.max(load, broker.use ?? 0)), background: colour(broker.number, 3) }}></i>
              <i style=${{ ...wide(load), background: colour(broker.number, 11) }}></i>
              <i class="mean" style=${{ left: `${Math.min(100, (100 * mean) / scale)}%` }}></i>`}
            </div><span class="said">${load === null ? "unknown" : percent(load)}</span></td>
          <td class="figure">${number(broker.bundles)}</td>
          <td class="figure">${broker.cores}</td>
          <td>${broker.version}</td><td>${broker.domain || "–"}</td></tr>`;
      })}</tbody></table></div>
  </section>`;
}

export function Hot({ hot, brokers, cluster }) {
  const rows = Object.keys(hot).sort().map((key) => hot[key]);
  const most = Math.max(...rows.map((row) => row.cost), 1e-9);
  if (rows.length === 0) return null;
  return html`<section aria-labelledby="hot">
    <h2 id="hot">Heaviest bundles</h2>
    <ol class="hot">${rows.map(({ bundle, cost, server }) => html`<li key=${bundle}>
      <a href=${toBundle(bundle)}>${bundle}</a>
      <span class="bar"><i style=${{ width: `${(100 * cost) / most}%`, background: colour(server, 11) }}></i></span>
      <span class="said">${percent(cost)} of a core</span></li>`)}</ol>
  </section>`;
}

export const stripLabel = (name, row) =>
  `${name}: ${plural(row.bundles, "bundle")}, ${row.moving} moving, ${number(row.free)} without an owner. ` +
  "Arrow keys move through the hash space, Enter looks closer.";

export function Namespaces({ namespaces, brokers, cluster }) {
  const names = Object.keys(namespaces).sort();
  const servers = namesOf(brokers);
  return html`<section aria-labelledby="namespaces">
    <h2 id="namespaces">Namespaces</h2>
    <p class="soft">Each strip is a hash space. Colour: owner. Darker: more load. Red marks: bundles
      with eight times the mean load; red cells: no owner. Line below: moving.</p>
    ${names.length === 0 && html`<p class="empty">There is no namespace yet. Create one:
      ${" "}<code>equipoise namespaces create TENANT/NAMESPACE</code></p>`}
    ${names.map((name) => {
      const row = namespaces[name];
      return html`<div class="namespace" key=${name}>
        <p><a href=${toNamespace(name)}>${name}</a>
          <span class="soft"> ${plural(row.bundles, "bundle")}, ${percent(row.cost)} of a core
          ${row.moving > 0 && `, ${row.moving} moving`}${row.free > 0 && html`, <b>${number(row.free)} without an owner</b>`}
          ${row.quarantine > 0 && html`, <b>${row.quarantine} in quarantine</b>`}
          ${row.status === "deleting" && ", being deleted"}</span></p>
        <${Strip} encoded=${row.strip} names=${servers} label=${stripLabel(name, row)}
          onPick=${(low, high) => { location.hash = toNamespace(name, low, high); }} />
      </div>`;
    })}
    ${names.length < cluster.namespaces && html`<p class="soft">${plural(cluster.namespaces - names.length, "namespace")}
      with less load ${cluster.namespaces - names.length === 1 ? "is" : "are"} not shown.</p>`}
  </section>`;
}

export function Moves({ moving, moved, cluster }) {
  const under = Object.entries(moving).sort();
  const ended = Object.values(moved).reverse().sort((one, other) => other.at_ms - one.at_ms);
  return html`<section aria-labelledby="moves">
    <h2 id="moves">Moves</h2>
    ${under.length === 0 && html`<p class="soft">No bundle is on its way.</p>`}
    ${under.length > 0 && html`<ul class="moves">${under.map(([bundle, move]) => html`<li key=${bundle}>
      <a href=${toBundle(bundle)}>${bundle}</a> <span class="tag">${move.phase.replace("_", " ")}</span>
      ${" "}${move.from ?? "nobody"} → ${move.to ?? "not chosen yet"}, for ${duration(Math.max(0, cluster.at_ms - move.since_ms))}
      ${move.phase !== "assigning" && html` <${Act} of="cancel" on=${bundle} />`}
      ${move.reason && html`<small>${move.reason}</small>`}</li>`)}</ul>`}
    ${cluster.moving > under.length && html`<p class="soft">and ${number(cluster.moving - under.length)} more</p>`}
    ${ended.length > 0 && html`<h3>Finished</h3><ul class="moves">${ended.map((move) => html`<li key=${move.bundle + move.at_ms}>
      <time datetime=${new Date(move.at_ms).toISOString()}>${time(move.at_ms)}</time> ${move.kind === "death" ? "recovery" : move.kind} of
      ${" "}<a href=${toBundle(move.bundle)}>${move.bundle}</a>: ${move.from ?? "nobody"} → ${move.to ?? "nobody"},
      ${" "}${move.result === "done" ? "" : html`<b>${move.result.replace("_", " ")}</b> `}in ${duration(move.took_ms)}, pause ${duration(move.pause_ms)}
      ${move.reason && html`<small>${move.reason}</small>`}</li>`)}</ul>`}
  </section>`;
}

export function Decisions({ decisions, cluster }) {
  const rows = Object.keys(decisions).sort().reverse().map((key) => [key, decisions[key]]);
  return html`<section aria-labelledby="decisions">
    <h2 id="decisions">Decisions</h2>
    ${rows.length === 0 && html`<p class="soft">Nothing has been decided yet.</p>`}
    <div class="decisions">${rows.map(([key, row]) => html`<details key=${key} open=${row.moves > 0}>
      <summary><time datetime=${new Date(row.at_ms).toISOString()}>${time(row.at_ms)}</time> ${row.title}
        ${" "}<span class="soft">${ago(Math.max(0, cluster.at_ms - row.at_ms))}</span></summary>
      <ul>${row.lines.map((line) => html`<li>${line}</li>`)}</ul></details>`)}</div>
  </section>`;
}

export function Asked({ asked, cluster }) {
  const rows = Object.keys(asked).sort().reverse().map((key) => [key, asked[key]]);
  return html`<section aria-labelledby="asked">
    <h2 id="asked">Asked for by people</h2>
    ${rows.length === 0 && html`<p class="soft">Nobody has asked for anything since ${cluster.first ? `offset ${number(cluster.known_from)}, where the page began to read` : `${cluster.answers} started`}.</p>`}
    <ul class="moves">${rows.map(([key, row]) => html`<li key=${key} class=${row.refused ? "alarmed" : ""}>
      <time datetime=${new Date(row.at_ms).toISOString()}>${time(row.at_ms)}</time> ${row.lines[0]}
      ${row.lines.slice(1).map((line) => html`<small>${dated(line)}</small>`)}</li>`)}</ul>
  </section>`;
}
