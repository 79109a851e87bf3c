// Figures and times as people read them.

export const number = (value) => value.toLocaleString("en");

export const percent = (part) =>
  part === null || part === undefined ? "unknown" : `${(100 * part).toLocaleString("en", { maximumSignificantDigits: part < 0.1 ? 2 : 3 })} %`;

export const hex = (point) => `0x${Math.round(point).toString(16).padStart(8, "0")}`;

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export function duration(ms) {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toPrecision(2)} s`;
  if (ms < 3_600_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 86_400_000) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}

export const ago = (ms) => (ms < 1_500 ? "just now" : `${duration(ms)} ago`);

export const date = (ms) => new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

// A line about a record, with the times that end something as people read them.
export const dated = (line) => (line.startsWith("until_ms: ") ? line.replace(/\d{13}/g, (ms) => date(Number(ms))).replace("until_ms", "until") : line);

export const time = (ms) => new Date(ms).toLocaleTimeString("en-GB");
