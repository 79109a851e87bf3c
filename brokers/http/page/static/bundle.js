// The view of one bundle: owner, token, state, load, what can be done with it.

import { Act, bundleIn } from "./actions.js";
import { Swatch, namesOf, namespaceOf, stripLabel, toBundle, toNamespace } from "./cluster.js";
import { Past } from "./past.js";
import { Strip } from "./strip.js";
import { html } from "./vendor/preact-htm.js";
import { hex, number, percent } from "./words.js";

const around = (low, high) => {
  const span = high - low;
  return [Math.max(0, low - 4 * span), Math.min(0xffffffff, high + 4 * span)];
};

export function Bundle({ name, low, high, sections }) {
  const namespace = namespaceOf(name);
  const rows = sections.focus ?? {};
  const brokers = sections.brokers ?? {};
  const bundle = bundleIn(sections, name);
  const about = rows[""];
  const move = sections.moving?.[name];
  const whole = sections.namespaces?.[namespace];
  const frozen = sections.controls?.freezes?.find((each) => each.namespace === namespace);
  const quarantine = sections.controls?.quarantines?.find((each) => each.bundle === name);
  const past = (changed) => (sections.cluster.first
    ? html`<p class="soft">Go back to live to see its history, its topics and its load over the last hour.</p>`
    : html`<${Past} key=${name} name=${name} changed=${changed} brokers=${brokers} />`);
  const isAsked = about?.namespace === namespace && (about.problem || (about.low === low && about.high === high));
  const head = html`<h2 id="bundle">${name}</h2>
    <p class="soft"><a href=${toNamespace(namespace)}>${namespace}</a> · <a href=${toNamespace(namespace, ...around(low, high))}>its neighbours</a></p>`;
  if (!isAsked) return html`<section>${head}<p class="soft">Loading.</p></section>`;
  if (about.problem) return html`<section>${head}<p class="empty">${about.problem}. <a href="#/">See all namespaces.</a></p></section>`;
  if (!bundle) {
    const others = Object.keys(rows).filter(Boolean).sort();
    return html`<section>${head}<p class="empty">There is no such bundle now: it was split or merged. ${others.length > 0 && "These are there:"}
      ${others.map((each) => html` <a key=${each} href=${toBundle(each)}>${each}</a>`)}</p>
      ${past("")}</section>`;
  }
  return html`<section aria-labelledby="bundle">${head}
    ${whole && html`<${Strip} encoded=${whole.strip} names=${namesOf(brokers)} label=${stripLabel(namespace, whole)} />
      <div class="window"><i style=${{ left: `${(100 * low) / 0xffffffff}%`, width: `max(3px, ${(100 * (high - low)) / 0xffffffff}%)` }}></i></div>`}
    <dl><dt>Owner</dt><dd><${Swatch} of=${brokers[bundle.owner]?.number} /> ${bundle.owner ?? "nobody"}</dd>
      <dt>State</dt><dd class=${bundle.phase === "free" ? "alarmed" : ""}>${bundle.phase.replace("_", " ")}${move && `, from ${move.from ?? "nobody"} to ${move.to ?? "not chosen yet"}`}</dd>
      ${move?.reason && html`<dt>Why</dt><dd>${move.reason}</dd>`}
      <dt>Token</dt><dd>${number(bundle.token)}</dd>
      <dt>Load</dt><dd>${percent(bundle.cost)} of a core</dd>
      <dt>Range</dt><dd>${hex(low)} to ${hex(high)}</dd>
      ${quarantine && html`<dt>Quarantine</dt><dd class="alarmed">${quarantine.reason}</dd>`}
      ${frozen && html`<dt>Frozen</dt><dd>${frozen.reason}</dd>`}</dl>
    <p class="zoom">${quarantine && html`<${Act} of="release" on=${name} />`}
      ${bundle.phase === "owned" && ["transfer", "unload", "split", "merge"].map((of) => html`<${Act} key=${of} of=${of} on=${name} />`)}
      ${["transferring", "splitting"].includes(bundle.phase) && html`<${Act} of="cancel" on=${name} />`}</p>
    ${past(`${bundle.phase} ${bundle.token}`)}
  </section>`;
}
