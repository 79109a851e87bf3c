// Draws the hash space of a namespace as a strip of cells: the colour is the owner, the shade the load.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { hex } from "./words.js";

export const HASH_END = 0xffffffff;
const STATES = ["owned", "moving", "free", "in quarantine"];
const HOT_SHADE = 11; // Eight times the mean load of a bundle.
const HUES = [205, 28, 152, 325, 48, 265, 95, 0, 180, 295];

export const hue = (number) =>
  number <= HUES.length ? HUES[number - 1] : Math.round((number * 137.5) % 360);

export const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

export function colour(number, shade = 9) {
  if (!number) return isDark() ? "#30363d" : "#d0d7de";
  const part = shade / 15;
  return isDark()
    ? `hsl(${hue(number)} ${45 + 45 * part}% ${20 + 48 * part}%)`
    : `hsl(${hue(number)} ${50 + 35 * part}% ${86 - 52 * part}%)`;
}

// The last point belongs to the space.
export const spanOf = (low, high) => high - low + (high === HASH_END ? 1 : 0);

// Returns the cells of a strip as the broker encodes them: three bytes each.
export function cellsOf(encoded) {
  const bytes = atob(encoded);
  const cells = [];
  for (let at = 0; at < bytes.length; at += 3) {
    const last = bytes.charCodeAt(at + 2);
    cells.push({
      server: (bytes.charCodeAt(at) << 8) | bytes.charCodeAt(at + 1),
      state: last >> 4,
      shade: last & 15,
    });
  }
  return cells;
}

// Yields cells that look alike together.
function* runs(cells) {
  for (let from = 0; from < cells.length; ) {
    const { server, state, shade } = cells[from];
    let to = from + 1;
    while (to < cells.length && cells[to].server === server && cells[to].state === state && cells[to].shade === shade) to += 1;
    yield { from, to, server, state, shade };
    from = to;
  }
}

function draw(canvas, cells, cursor) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const ink = isDark() ? "#e6edf3" : "#1f2328";
  const alarm = isDark() ? "#ff8a80" : "#b3261e";
  const top = 7; // Room for the marks of hot bundles.
  // Whole pixels, and equal neighbours as one, so that no seams show.
  const edge = (place) => Math.round((place * width * scale) / cells.length) / scale;
  for (const { from, to, server, state, shade } of runs(cells)) {
    const [left, right] = [edge(from), edge(to)];
    pen.fillStyle = state > 1 ? alarm : colour(server, shade);
    pen.fillRect(left, top, right - left, height - top);
    if (state === 1) {
      pen.fillStyle = ink;
      pen.fillRect(left, height - 4, right - left, 4);
    }
    if (shade >= HOT_SHADE) {
      const middle = (left + right) / 2;
      pen.fillStyle = alarm;
      pen.beginPath();
      pen.moveTo(middle - 4, 0);
      pen.lineTo(middle + 4, 0);
      pen.lineTo(middle, 6);
      pen.fill();
    }
  }
  if (cursor !== null) {
    const left = (cursor * width) / cells.length;
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    pen.strokeRect(left, top, Math.max(3, width / cells.length), height - top - 1);
  }
}

// A strip that pointer and keyboard can explore. `onPick` gets the ends of the picked cell.
export function Strip({ encoded, low = 0, high = HASH_END, names, label, tall, onPick, onZoom }) {
  const canvas = useRef(null);
  const [cursor, setCursor] = useState(null);
  const cells = cellsOf(encoded);
  const span = spanOf(low, high);
  const ends = (cell) => [
    Math.floor(low + (cell * span) / cells.length),
    Math.min(HASH_END, Math.ceil(low + ((cell + 1) * span) / cells.length)),
  ];
  const paint = useRef(null);
  paint.current = () => draw(canvas.current, cells, cursor);
  useEffect(() => paint.current());
  useEffect(() => {
    const observer = new ResizeObserver(() => paint.current());
    observer.observe(canvas.current);
    return () => observer.disconnect();
  }, []);
  const cellAt = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    return Math.max(0, Math.min(cells.length - 1, Math.floor(part * cells.length)));
  };
  const keys = (event) => {
    const at = cursor ?? 0;
    const step = event.shiftKey ? Math.ceil(cells.length / 16) : 1;
    if (event.key === "ArrowRight") setCursor(Math.min(cells.length - 1, at + step));
    else if (event.key === "ArrowLeft") setCursor(Math.max(0, at - step));
    else if (event.key === "Home") setCursor(0);
    else if (event.key === "End") setCursor(cells.length - 1);
    else if (event.key === "Enter" && onPick) onPick(...ends(at));
    else if (["+", "-"].includes(event.key) && onZoom) onZoom((ends(at)[0] + ends(at)[1]) / 2, event.key === "+");
    else return;
    event.preventDefault();
  };
  const about = cursor === null || !cells[cursor] ? null : cells[cursor];
  const words = about && [
    `${hex(ends(cursor)[0])} to ${hex(ends(cursor)[1])}`,
    about.server ? names[about.server] ?? "a broker that is gone" : "no owner",
    STATES[about.state],
    about.shade >= HOT_SHADE ? "hot" : `load ${about.shade} of 15`,
  ].join(", ");
  return html`<div class="strip">
    <canvas ref=${canvas} class=${tall ? "tall" : ""} tabindex="0" role="img" aria-label=${label}
      onPointerMove=${(event) => setCursor(cellAt(event))} onPointerLeave=${() => setCursor(null)}
      onBlur=${() => setCursor(null)} onKeyDown=${keys}
      onClick=${(event) => onPick && onPick(...ends(cellAt(event)))}
      onWheel=${(event) => {
        if (!onZoom || !event.ctrlKey) return;
        event.preventDefault();
        const [first, last] = ends(cellAt(event));
        onZoom((first + last) / 2, event.deltaY < 0);
      }}></canvas>
    <p class="about" aria-live="polite">${words ?? ""}</p>
  </div>`;
}
