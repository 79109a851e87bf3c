// What an operator can do: each action says what will happen, sends one request, and shows the answer.

import { call } from "./api.js";
import { createContext, html, useContext, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { duration, hex, number, percent, plural } from "./words.js";

// Opens the dialog of an action; null for those who may only look.
export const Operator = createContext(null);

const HOUR_MS = 3_600_000;
const LASTS = [[900_000, "15 minutes"], [HOUR_MS, "1 hour"], [4 * HOUR_MS, "4 hours"], [24 * HOUR_MS, "1 day"]];

const loadOf = (broker) => (broker?.cost == null ? null : broker.cost / broker.cores);
const isUp = (broker) => broker.status === "up" && !broker.maintenance;
const pathOf = (bundle) => `admin/v2/namespaces/${bundle}`;
const nameOf = (server, { brokers }) => Object.keys(brokers).find((name) => brokers[name].number === server);

// What the page knows of a bundle that it looks at.
export function bundleIn(sections, bundle) {
  const row = sections.focus?.[bundle];
  if (!row) return null;
  const [low, high, server, phase, token, cost] = row;
  return { low, high, phase, token, cost, owner: server ? nameOf(server, sections) : undefined };
}

function destinations(bundle, sections) {
  const owner = bundleIn(sections, bundle)?.owner;
  return Object.entries(sections.brokers)
    .filter(([name, broker]) => name !== owner && isUp(broker))
    .sort((one, other) => (loadOf(one[1]) ?? 1) - (loadOf(other[1]) ?? 1) || one[0].localeCompare(other[0]));
}

function lastMoves({ moved }) {
  const pauses = Object.values(moved ?? {}).filter((each) => each.kind === "transfer").map((each) => each.pause_ms).sort((one, other) => one - other);
  return pauses.length ? ` Half of the last transfers had a pause of at most ${duration(pauses[pauses.length >> 1])}.` : "";
}

function change(name, added, { brokers }) {
  const load = loadOf(brokers[name]);
  return load === null ? "" : ` The load of ${name} goes from ${percent(load)} to ${percent(Math.max(0, load + added / brokers[name].cores))}.`;
}

function saysTransfer(bundle, { destination }, sections) {
  const { owner, cost } = bundleIn(sections, bundle) ?? {};
  if (!owner) return "It has no owner now, so it cannot be transferred.";
  if (!destination) return "No other broker is up, so it has no place to go.";
  return `${owner} closes it and hands it over to ${destination}. Its clients wait meanwhile.${lastMoves(sections)}` +
    change(owner, -cost, sections) + change(destination, cost, sections);
}

function saysMaintenance(name, { of }, sections) {
  const domain = sections.brokers[name]?.domain;
  const isOfDomain = of === "domain";
  const away = Object.entries(sections.brokers).filter(([id, each]) => (isOfDomain ? each.domain === domain : id === name));
  const others = Object.values(sections.brokers).filter((each) => isUp(each) && !away.some(([, one]) => one === each));
  const held = away.reduce((sum, [, each]) => sum + each.bundles, 0);
  const cost = (those) => those.reduce((sum, each) => sum + (each.cost ?? 0), 0);
  const cores = others.reduce((sum, each) => sum + each.cores, 0);
  const who = isOfDomain ? `All brokers of ${domain} (${away.map(([id]) => id).join(", ")}) take` : `${name} takes`;
  return `${who} no bundles any more and ${isOfDomain ? "give" : "gives"} ${plural(held, "bundle")} away, until the maintenance ends. ` +
    (others.length === 0
      ? "But no other broker is up: the bundles stay."
      : `They go to ${plural(others.length, "other broker")}, whose mean load goes from ${percent(cost(others) / cores)} to ${percent((cost(others) + cost(away.map(([, each]) => each))) / cores)}.`);
}

const asControl = ({ reason, for_ms: forMs }) => ({ reason, ...(forMs && { for_ms: Number(forMs) }) });

const maintenancePath = (name, isOfDomain) =>
  `admin/v2/controls/${isOfDomain ? "domain-maintenance" : "maintenance"}/${encodeURIComponent(name)}`;

const maintenanceOf = (name, { controls }) => controls.maintenances.find((each) => each.brokers.includes(name));

// What a maintenance that has a broker is of.
function whole(name, sections) {
  const found = maintenanceOf(name, sections);
  return found?.of === "failure domain" ? `domain ${found.id}` : name;
}

function whereIsIt(outcome, bundle) {
  if (!outcome) return `${bundle} has no owner, so there was nothing to move.`;
  return outcome.problem ?? `${outcome.bundle} is at ${outcome.owner} now, with token ${number(outcome.token)}.`;
}

// `fields`: of the dialog. `says`: what will happen. `request`: method, path, body. `done`: what has happened.
export const ACTIONS = {
  transfer: {
    name: "Transfer",
    fields: ["destination"],
    says: saysTransfer,
    request: (bundle, { destination }) => ["PUT", `${pathOf(bundle)}/unload?${new URLSearchParams({ destinationBroker: destination })}`],
    done: whereIsIt,
  },
  unload: {
    name: "Unload",
    says: (bundle, _, sections) =>
      `${bundleIn(sections, bundle)?.owner ?? "Its owner"} gives it away, to the broker with the fewest bundles for its capacity. Its clients wait meanwhile.${lastMoves(sections)}`,
    request: (bundle) => ["PUT", `${pathOf(bundle)}/unload`],
    done: whereIsIt,
  },
  split: {
    name: "Split",
    says(bundle, _, sections) {
      const { low, high, owner } = bundleIn(sections, bundle) ?? {};
      return low === undefined ? "It is gone." : `It becomes two, cut in the middle, at ${hex((low + high + (high === 0xffffffff)) / 2)}. Both stay at ${owner ?? "its owner"}, with new tokens.`;
    },
    request: (bundle) => ["PUT", `${pathOf(bundle)}/split`],
    done: (_, bundle) => `${bundle} is split.`,
  },
  merge: {
    name: "Merge",
    says: (bundle, _, sections) =>
      `It becomes one with its right neighbour, the bundle that begins at ${hex(bundleIn(sections, bundle)?.high ?? 0)}. Both must have the same owner, which keeps the whole with a new token.`,
    request: (bundle) => ["PUT", `${pathOf(bundle)}/merge`],
    done: (_, bundle) => `${bundle} and its right neighbour are one bundle now.`,
  },
  cancel: {
    name: "Cancel",
    says: (bundle, _, { moving }) =>
      `Its move to ${moving?.[bundle]?.to ?? "another broker"} ends, and ${moving?.[bundle]?.from ?? "its owner"} keeps it with its token. Once its release has begun, it cannot be cancelled.`,
    request: (bundle) => ["DELETE", `${pathOf(bundle)}/unload`],
    done: (_, bundle) => `${bundle} stays where it is.`,
  },
  release: {
    name: "Release from quarantine",
    says: () => "The leader gives it to a broker at once. Mend the cause first, or it may come back here.",
    request: (bundle) => ["DELETE", `admin/v2/controls/quarantine/${bundle}`],
    done: (_, bundle) => `${bundle} gets an owner.`,
  },
  freeze: {
    name: "Freeze",
    fields: ["reason", "for_ms"],
    says: (name) => `The balancer leaves the bundles of ${name} alone. You can still move them, and a broker that drains gives them away.`,
    request: (name, given) => ["POST", `admin/v2/controls/freeze/${name}`, asControl(given)],
    done: (_, name) => `${name} is frozen.`,
  },
  unfreeze: {
    name: "Unfreeze",
    says: (name) => `The balancer may move, split and merge the bundles of ${name} again.`,
    request: (name) => ["DELETE", `admin/v2/controls/freeze/${name}`],
    done: (_, name) => `${name} is not frozen any more.`,
  },
  maintenance: {
    name: "Drain",
    fields: ["of", "reason", "for_ms"],
    says: saysMaintenance,
    request: (name, given, { brokers }) =>
      ["POST", given.of === "domain" ? maintenancePath(brokers[name].domain, true) : maintenancePath(name), asControl(given)],
    done: (_, name, { of }, { brokers }) =>
      `The maintenance of ${of === "domain" ? `domain ${brokers[name].domain}` : name} has begun, and the bundles leave. It lasts until it ends, also over restarts.`,
  },
  ending: {
    name: "End maintenance",
    says: (name, _, sections) => `${whole(name, sections)} may get bundles again. The balancer moves them as the load asks for it.`,
    request: (name, _, sections) => {
      const found = maintenanceOf(name, sections);
      return ["DELETE", maintenancePath(found?.id ?? name, found?.of === "failure domain")];
    },
    done: (_, name, __, sections) => `The maintenance of ${whole(name, sections)} has ended.`,
  },
  pause: {
    name: "Turn balancing off",
    fields: ["reason", "for_ms"],
    hasEnd: true,
    says: () => "The balancer moves, splits and merges nothing until then. Bundles without an owner still get one, brokers that drain still give theirs away, and you can still move them.",
    request: (_, given) => ["POST", "admin/v2/controls/pause", asControl(given)],
    done: () => "Balancing is off.",
  },
  resume: {
    name: "Turn balancing on",
    says: (_, __, { controls }) => `The pause ends (${controls?.pause?.reason ?? "it has ended"}). The leader balances from its next round on.`,
    request: () => ["DELETE", "admin/v2/controls/pause"],
    done: () => "Balancing is on.",
  },
};

export function Act({ of, on = "" }) {
  const ask = useContext(Operator);
  const { name } = ACTIONS[of];
  return ask && html`<button type="button" class="act" aria-label=${`${name} ${on}`.trim()} onClick=${() => ask({ of, on })}>${name}</button>`;
}

function Field({ name, on, sections, given, give, hasEnd }) {
  const set = (event) => give({ ...given, [name]: event.target.value });
  if (name === "reason") {
    return html`<label>Reason <input required maxlength="200" value=${given.reason ?? ""} onInput=${set} /></label>`;
  }
  if (name === "for_ms") {
    return html`<label>For <select value=${given.for_ms} onChange=${set}>
      ${LASTS.map(([ms, words]) => html`<option value=${ms}>${words}</option>`)}
      ${!hasEnd && html`<option value="">until I end it</option>`}</select></label>`;
  }
  if (name === "of") {
    const domain = sections.brokers[on]?.domain;
    return domain && html`<label>What <select value=${given.of} onChange=${set}>
      <option value="broker">broker ${on}</option><option value="domain">all of domain ${domain}</option></select></label>`;
  }
  return html`<label>To <select value=${given.destination} onChange=${set}>
    ${destinations(on, sections).map(([id, broker]) => html`<option value=${id}>${id} (load ${percent(loadOf(broker))})</option>`)}</select></label>`;
}

// The dialog of one action: what will happen, then what has happened, or the broker's own sentence about why not.
export function Ask({ of, on, sections, close }) {
  const action = ACTIONS[of];
  const box = useRef(null);
  const [given, give] = useState({ for_ms: String(HOUR_MS), of: "broker", destination: destinations(on, sections)[0]?.[0] });
  const [answer, setAnswer] = useState({ is: "open" });
  useEffect(() => box.current.showModal(), []);
  const send = async (event) => {
    event.preventDefault();
    setAnswer({ is: "sent", text: "Asked. Waiting until it is done." });
    try {
      const found = await call(...action.request(on, given, sections));
      setAnswer({ is: "done", text: action.done(found, on, given, sections) });
    } catch (problem) {
      setAnswer({ is: "failed", text: problem.message });
    }
  };
  const fields = action.fields ?? [];
  const isOver = answer.is === "done" || answer.is === "sent";
  return html`<dialog ref=${box} onClose=${close} aria-labelledby="ask"><form onSubmit=${send}>
    <h2 id="ask">${action.name} ${on}</h2>
    ${!isOver && fields.map((name) => html`<${Field} key=${name} ...${{ name, on, sections, given, give, hasEnd: action.hasEnd }} />`)}
    ${!isOver && html`<p class="says">${action.says(on, given, sections)}</p>
      <p class="soft">The log will say that ${sections.you.name} asked for it.</p>`}
    <p class=${answer.is} role="status">${answer.text ?? ""}</p>
    <p class="zoom">${!isOver && html`<button disabled=${fields.includes("destination") && !given.destination}>${action.name}</button>`}
      <button type="button" onClick=${() => box.current.close()}>${answer.is === "open" ? "Leave it" : "Close"}</button></p>
  </form></dialog>`;
}
