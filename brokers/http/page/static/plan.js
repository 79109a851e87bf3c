// The view of a plan: what the balancer would move now, and "apply exactly this plan".

import { Operator } from "./actions.js";
import { call } from "./api.js";
import { Swatch, toBundle } from "./cluster.js";
import { colour } from "./strip.js";
import { html, useContext, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { percent, plural, time } from "./words.js";

const change = (before, after) => (percent(before) === percent(after) ? percent(before) : `${percent(before)} → ${percent(after)}`);

function Bars({ plan, brokers }) {
  const rows = Object.entries(plan.brokers).sort();
  const most = Math.max(...rows.flatMap(([, each]) => [each.before ?? 0, each.after ?? 0]), 1e-9);
  return html`<p class="soft">Above: before. Below: after. As a share of the broker, by ${plan.measure}.</p>
    <div class="wide"><table><thead><tr><th scope="col">broker</th><th scope="col" class="bars">load</th><th scope="col" class="figure">bundles</th></tr></thead>
    <tbody>${rows.map(([name, each]) => html`<tr key=${name}>
      <th scope="row"><span class="name"><${Swatch} of=${brokers[name]?.number} /> ${name}</span>${each.apart && html`<small>takes no part: ${each.apart}</small>`}</th>
      <td class="bars"><div class="pair" role="img" aria-label=${`${name}: ${change(each.before, each.after)}`}>
        ${[each.before, each.after].map((load, place) => html`<span class="bar"><i style=${{ width: `${(100 * (load ?? 0)) / most}%`, background: colour(brokers[name]?.number, place ? 11 : 5) }}></i></span>`)}</div>
        <span class="said">${change(each.before, each.after)}</span></td>
      <td class="figure">${each.bundles > 0 ? "+" : ""}${each.bundles}</td></tr>`)}</tbody></table></div>`;
}

const gain = (predicted) =>
  predicted && `Of the mean load, the first has ${change(...predicted[0])}, the second ${change(...predicted[1])}.`;

export function Plan({ sections }) {
  const may = useContext(Operator) !== null;
  const [attempt, again] = useState(0);
  const [plan, setPlan] = useState(null);
  const [done, setDone] = useState({}); // What became of each move, by bundle.
  const [state, setState] = useState({ is: "open" });
  const goesOn = useRef(false);
  useEffect(() => {
    setPlan(null);
    setDone({});
    setState({ is: "open" });
    call("GET", "v1/plan").then(setPlan, (problem) => setState({ is: "failed", text: problem.message }));
    return () => {
      goesOn.current = false; // Nothing goes on after the page is left.
    };
  }, [attempt]);
  const apply = async () => {
    goesOn.current = true;
    setState({ is: "sent", text: "Moving." });
    let left = plan.moves.map((move) => move.bundle);
    try {
      while (left.length && goesOn.current) {
        const made = await call("POST", "v1/plan", { text: plan.text, left });
        const by = Object.fromEntries(made.map((each) => [each.bundle, each]));
        left = left.filter((bundle) => !by[bundle]);
        setDone((before) => ({ ...before, ...by }));
      }
      setState({ is: "done", text: left.length ? `Stopped: ${plural(left.length, "move")} of the plan ${left.length === 1 ? "was" : "were"} not begun.` : "The plan is done." });
    } catch (problem) {
      setState({ is: "failed", text: problem.message });
    }
    goesOn.current = false;
  };
  const isOff = sections.controls?.pause ? "Balancing is off, so only this page moves bundles. " : "The balancer makes plans of its own. To keep it from that meanwhile, turn balancing off. ";
  return html`<section aria-labelledby="plan"><h2 id="plan">What the balancer would move now</h2>
    ${!plan && state.is === "open" && html`<p class="soft">Making a plan.</p>`}
    ${plan && html`<p class="soft">Plan ${plan.id}, made at ${time(plan.at_ms)} (${plan.strategy}).
        ${plan.deviation[0] !== null && ` The loads differ by ${change(...plan.deviation)} of their mean.`}</p>
      <${Bars} plan=${plan} brokers=${sections.brokers ?? {}} />
      ${plan.moves.length === 0 && html`<p class="empty">Nothing would move: ${plan.idle ?? "no broker has too much load"}.</p>`}
      ${plan.moves.length > 0 && html`<h3>${plural(plan.moves.length, "move")}</h3>
        <ol class="moves">${plan.moves.map((move) => html`<li key=${move.bundle} class=${done[move.bundle]?.arrived === false ? "alarmed" : ""}>
          ${done[move.bundle]?.arrived && html`<span class="done" role="img" aria-label="done">✓</span> `}<a href=${toBundle(move.bundle)}>${move.bundle}</a>: ${move.from} → ${move.to}
          <small>${move.reason}</small>${move.predicted && html`<small>${gain(move.predicted)}</small>`}
          ${done[move.bundle] && html`<small>${done[move.bundle].text}</small>`}</li>`)}</ol>`}
      ${plan.stays.length > 0 && html`<details><summary>Why not more</summary><ul>${plan.stays.map((each) => html`<li key=${each}>${each}</li>`)}</ul></details>`}`}
    <p class=${state.is} role="status">${state.text ?? ""}</p>
    ${may && plan?.moves.length > 0 && state.is === "open" && html`<p class="says">Exactly these moves are made, as many at once as the settings allow, unless the cluster has changed.
      ${" "}Each pauses the clients of its bundle. Nothing more begins after you leave this page. ${isOff}The log will say that ${sections.you.name} asked for it.</p>`}
    <p class="zoom">${may && plan?.moves.length > 0 && state.is === "open" && html`<button onClick=${apply}>Apply exactly this plan</button>`}
      ${state.is === "sent" ? html`<button onClick=${() => { goesOn.current = false; }}>Stop after the moves under way</button>`
        : html`<button onClick=${() => again(attempt + 1)}>Plan again</button>`}</p>
  </section>`;
}
