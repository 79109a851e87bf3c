// The page: follows the overview of one broker, and shows the view that the address names.

import { call, follow, keepToken, merged, readToken } from "./api.js";
import { Ask, Operator } from "./actions.js";
import { Bundle } from "./bundle.js";
import { Asked, Brokers, Decisions, Hot, Moves, Namespaces, Problems } from "./cluster.js";
import { Moment } from "./moment.js";
import { Namespace } from "./namespace.js";
import { Plan } from "./plan.js";
import { HASH_END } from "./strip.js";
import { html, render, useEffect, useErrorBoundary, useState } from "./vendor/preact-htm.js";
import { duration, number, plural } from "./words.js";

const AGAIN_MS = [500, 1_000, 2_000, 5_000];
const CALM_MS = 150; // A slider that moves asks for nothing.

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function viewIn(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [kind, tenant, namespace, range] = path.split("/").map(decoded);
  const ends = /^0x([0-9a-f]{8})_0x([0-9a-f]{8})$/.exec(range ?? "")?.slice(1).map((end) => parseInt(end, 16));
  if (kind === "bundle" && ends && ends[0] < ends[1]) {
    return { kind, name: `${tenant}/${namespace}/${range}`, namespace: `${tenant}/${namespace}`, low: ends[0], high: ends[1] };
  }
  if (kind === "plan") return { kind };
  if (kind !== "namespace" || !namespace) return { kind: "cluster" };
  const asked = new URLSearchParams(query);
  const bounded = (name, otherwise) => {
    const value = Number(asked.get(name) ?? otherwise);
    return Number.isInteger(value) && value >= 0 && value <= HASH_END ? value : otherwise;
  };
  const [low, high] = [bounded("low", 0), bounded("high", HASH_END)];
  return { kind, name: `${tenant}/${namespace}`, namespace: `${tenant}/${namespace}`, ...(low < high ? { low, high } : { low: 0, high: HASH_END }) };
}

const queryOf = (view, at) =>
  `?${new URLSearchParams({ ...(view.namespace && { namespace: view.namespace, low: view.low, high: view.high }), ...(at !== null && { at }) })}`;

// Says that a broker reads another log than before. Offsets of one log only rise, unless an older copy of it was put back.
function replacement(before, after) {
  if (!before || !after || (before.log_id === after.log_id && (before.first || after.first || after.offset >= before.offset))) return "";
  return `The log was replaced: offset ${number(after.offset)} of ${after.name} (${after.log}) follows offset ${number(before.offset)} of ${before.name} (${before.log}). What the page showed before belongs to the former log.`;
}

// Follows the overview for as long as the page is open, and says how it is. `at`: has that of a past offset instead.
function useOverview(view, at) {
  const [sections, setSections] = useState(null);
  const [link, setLink] = useState({ is: "connecting" });
  const [notice, setNotice] = useState("");
  const [attempt, setAttempt] = useState(0); // A new token is tried at once.
  const query = queryOf(view, at);
  useEffect(() => {
    const ended = new AbortController();
    const got = (is, name, data) => {
      setLink({ is });
      setSections((before) => {
        const after = merged(name === "changes" ? before : {}, data);
        setNotice((kept) => replacement(before?.cluster, after.cluster) || kept);
        return after;
      });
    };
    if (at !== null) {
      setLink({ is: "reading" });
      const timer = setTimeout(() => call("GET", `v1/overview${query}`).then(
        (found) => ended.signal.aborted || got("past", "sections", found),
        ({ status, message }) => ended.signal.aborted || setLink({ is: "lost", status, sentence: message }),
      ), CALM_MS);
      return () => {
        clearTimeout(timer);
        ended.abort();
      };
    }
    const wait = (ms) => new Promise((done) => setTimeout(done, ms));
    (async () => {
      for (let failures = 0; !ended.signal.aborted; ) {
        let problem = null;
        try {
          await follow(`v1/overview${query}`, (name, data) => {
            failures = 0;
            got("live", name, data);
          }, ended.signal);
        } catch (error) {
          problem = error;
        }
        if (ended.signal.aborted) return;
        if (problem === null) continue; // A stream ends after some minutes.
        failures += 1;
        const { status = 0, message } = problem;
        const sentence = status || problem.status === 0 ? message : "the connection broke";
        setLink((before) => ({ is: "lost", status, sentence, since: before.since ?? Date.now() }));
        if (status === 401 || status === 403) return;
        await wait(AGAIN_MS[Math.min(failures, AGAIN_MS.length) - 1]);
      }
    })();
    return () => ended.abort();
  }, [query, attempt]);
  return [sections, link, notice, () => setAttempt((before) => before + 1)];
}

function Login({ sentence, retry }) {
  const enter = (event) => {
    event.preventDefault();
    keepToken(event.target.elements.token.value.trim());
    retry();
  };
  return html`<section class="login"><h2>Who are you?</h2>
    <p>${sentence}</p>
    <form onSubmit=${enter}><label>Token <input name="token" type="password" autocomplete="off" required /></label>
      <button>Sign in</button></form>
    <p class="soft">The page keeps the token until you close this tab.${readToken() && " The last one was refused."}</p></section>`;
}

function Lost({ link, brokers, answers }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((count) => count + 1), 1_000);
    return () => clearInterval(timer);
  }, []);
  const others = Object.entries(brokers ?? {}).filter(([name, each]) => name !== answers && each.http && each.status === "up");
  return html`<div class="lost" role="alert"><strong>Not live: ${link.sentence}.</strong>
    ${brokers && html` The page shows the state of ${duration(Date.now() - link.since)} ago.`} It tries again by itself.
    ${others.length > 0 && html` Other brokers: ${others.map(([name, each]) => html`<a href=${each.http + location.pathname}>${name}</a> `)}`}</div>`;
}

function Header({ cluster, link, lookBack }) {
  const words = { live: "live", lost: "not live", connecting: "connecting", past: "the past", reading: "reading the log" }[link.is];
  return html`<header><h1><a href="#/">Equipoise</a> ${cluster && html`<span>${cluster.name}</span>`}</h1>
    <p class=${`link ${link.is}`} role="status">${words}</p>
    <nav><a href="#/">Cluster</a> <a href="#/plan">Plan</a>${link.is === "live" && html` <button class="act" onClick=${lookBack}>Look back</button>`}</nav>
    ${cluster && html`<p class="soft">leader ${cluster.leader ?? "none"} · ${plural(cluster.bundles, "bundle")} in ${plural(cluster.namespaces, "namespace")} ·
      policy ${cluster.policy} · offset ${number(cluster.offset)} · answered by ${cluster.answers}</p>`}</header>`;
}

function Page() {
  const [view, setView] = useState(viewIn(location.hash));
  const [, setScheme] = useState("");
  useEffect(() => {
    const moved = () => setView(viewIn(location.hash));
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const turned = () => setScheme(scheme.matches ? "dark" : "light");
    addEventListener("hashchange", moved);
    scheme.addEventListener("change", turned);
    return () => {
      removeEventListener("hashchange", moved);
      scheme.removeEventListener("change", turned);
    };
  }, []);
  const [time, setTime] = useState({ at: null }); // `last`: where the log ended when it was left.
  const [sections, link, notice, retry] = useOverview(view, time.at);
  const [asked, ask] = useState(null);
  const [failure] = useErrorBoundary();
  useEffect(() => {
    document.title = sections ? `${sections.cluster.name}: Equipoise` : "Equipoise";
  }, [sections?.cluster?.name]);
  const body = () => {
    if (link.status === 401) return html`<${Login} sentence=${link.sentence} retry=${retry} />`;
    if (link.status === 403) return html`<section><h2>Not allowed</h2><p class="empty">${link.sentence}</p></section>`;
    if (!sections) return link.is === "lost" ? null : html`<p class="empty">Reading the cluster.</p>`;
    if (view.kind === "namespace") return html`<${Namespace} ...${view} sections=${sections} />`;
    if (view.kind === "plan" && time.at !== null) return html`<section><h2>Plan</h2><p class="empty">A plan is made for now. Go back to live to see it.</p></section>`;
    if (view.kind === "plan") return html`<${Plan} sections=${sections} />`;
    if (view.kind === "bundle") return html`<${Bundle} ...${view} sections=${sections} />`;
    return html`<${Problems} ...${sections} problems=${sections.problems ?? {}} isNow=${isLive} />
      <${Brokers} brokers=${sections.brokers ?? {}} />
      <${Namespaces} namespaces=${sections.namespaces ?? {}} brokers=${sections.brokers ?? {}} cluster=${sections.cluster} />
      <div class="columns"><${Hot} hot=${sections.hot ?? {}} brokers=${sections.brokers ?? {}} cluster=${sections.cluster} />
      <${Moves} moving=${sections.moving ?? {}} moved=${sections.moved ?? {}} cluster=${sections.cluster} /></div>
      <div class="columns"><${Decisions} decisions=${sections.decisions ?? {}} cluster=${sections.cluster} />
      <${Asked} asked=${sections.asked ?? {}} cluster=${sections.cluster} /></div>`;
  };
  const isLive = time.at === null && link.is !== "lost";
  const isDenied = link.status === 401 || link.status === 403;
  if (failure) return html`<main><section><h2>The page has failed</h2><p class="empty" role="alert">${String(failure)}. Reload it. The cluster is not concerned.</p></section></main>`;
  return html`<${Operator.Provider} value=${sections?.you?.may_operate && isLive ? ask : null}><${Header} cluster=${sections?.cluster} link=${link} lookBack=${() => setTime({ at: sections.cluster.offset, last: sections.cluster })} />
    ${time.at !== null && html`<${Moment} ...${time} cluster=${sections?.cluster} link=${link} go=${(at) => setTime({ ...time, at })} />`}
    ${link.is === "lost" && !isDenied && time.at === null && html`<${Lost} link=${link} brokers=${sections?.brokers} answers=${sections?.cluster.answers} />`}
    ${notice && html`<div class="lost" role="alert">${notice}</div>`}
    <main>${body()}</main>
    ${asked && sections && time.at === null && html`<${Ask} key=${asked.of + asked.on} ...${asked} sections=${sections} close=${() => ask(null)} />`}<//>`;
}

const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} />`, root);
