// Numbers and times as people read them. Pure: the language and the clock come in.

export function number(value: number | null | undefined, digits = 0): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en-US", { maximumFractionDigits: digits, useGrouping: true });
}

export function percent(fraction: number | null | undefined, digits = 0): string {
  if (fraction === null || fraction === undefined || !Number.isFinite(fraction)) return "–";
  return `${(fraction * 100).toFixed(digits)} %`;
}

export function megabytes(mb: number | null | undefined): string {
  if (mb === null || mb === undefined) return "–";
  if (mb < 1_024) return `${Math.round(mb)} MB`;
  const gb = mb / 1_024;
  return gb < 1_024 ? `${gb.toFixed(gb < 100 ? 1 : 0)} GB` : `${(gb / 1_024).toFixed(1)} TB`;
}

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  if (count < 1_024) return `${count} B`;
  return count < 1_024 ** 2 ? `${trimmed(count / 1_024)} KB` : megabytes(count / 1_024 ** 2);
}

export type Units = Readonly<Record<"ms" | "s" | "min" | "h" | "d", string>>;
export const ENGLISH_UNITS: Units = { ms: "ms", s: "s", min: "min", h: "h", d: "d" };

/** Two units at most: 850 ms, 42 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(ms: number | null | undefined, units: Units = ENGLISH_UNITS): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 0) return `−${duration(-ms, units)}`;
  if (ms < 1_000) return `${Math.round(ms)} ${units.ms}`;
  const s = ms / 1_000;
  if (s < 10) return `${trimmed(s)} ${units.s}`;
  if (s < 59.5) return `${Math.round(s)} ${units.s}`;
  const minutes = Math.floor(Math.round(s) / 60);
  if (minutes < 60) return joined(minutes, units.min, Math.round(s) % 60, units.s, minutes < 10);
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return joined(hours, units.h, minutes % 60, units.min, hours < 24);
  return joined(Math.floor(hours / 24), units.d, hours % 24, units.h, true);
}

function trimmed(value: number): string {
  return value.toFixed(1).replace(/\.0$/, "");
}

function joined(big: number, bigUnit: string, small: number, smallUnit: string, both: boolean): string {
  return both && small ? `${big} ${bigUnit} ${small} ${smallUnit}` : `${big} ${bigUnit}`;
}

/** One unit, for figures that must stay short: 850 ms, 42 s, 2.1 min, 1.3 h. */
export function brief(ms: number | null | undefined, units: Units = ENGLISH_UNITS): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 59_500) return duration(ms, units);
  const hours = ms / 3_600_000;
  const short = (value: number) => trimmed(value < 10 ? value : Math.round(value));
  if (hours < 0.99) return `${short(hours * 60)} ${units.min}`;
  return hours < 48 ? `${short(hours)} ${units.h}` : `${short(hours / 24)} ${units.d}`;
}

export type Language = "en" | "zh";

/** "3 min ago", "in 2 h"; the words of the language itself. */
export function relative(atMs: number, nowMs: number, language: Language): string {
  const s = Math.round((atMs - nowMs) / 1_000);
  const words = relativeWords(language);
  const size = Math.abs(s);
  if (size < 60) return words.format(s, "second");
  if (size < 3_600) return words.format(Math.round(s / 60), "minute");
  if (size < 172_800) return words.format(Math.round(s / 3_600), "hour");
  return words.format(Math.round(s / 86_400), "day");
}

const made = new Map<string, Intl.RelativeTimeFormat>();

function relativeWords(language: Language): Intl.RelativeTimeFormat {
  let words = made.get(language);
  if (!words) {
    words = new Intl.RelativeTimeFormat(language === "zh" ? "zh-CN" : "en", { numeric: "auto", style: "narrow" });
    made.set(language, words);
  }
  return words;
}

/** In the viewer's own time zone, to the second, with the zone named. */
export function exact(atMs: number, language: Language): string {
  return new Date(atMs).toLocaleString(language === "zh" ? "zh-CN" : "en-GB", {
    year: "numeric",
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    timeZoneName: "short",
    hour12: false,
  });
}

export function clock(atMs: number, withSeconds = false): string {
  const date = new Date(atMs);
  const parts = [date.getHours(), date.getMinutes(), ...(withSeconds ? [date.getSeconds()] : [])];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

export function day(atMs: number, language: Language): string {
  return new Date(atMs).toLocaleDateString(language === "zh" ? "zh-CN" : "en-GB", { month: "short", day: "numeric" });
}

export function parseTime(text: string | null | undefined): number | null {
  if (!text) return null;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? null : ms;
}

export function command(given: string | string[]): string {
  if (typeof given === "string") return given;
  return given.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");
}

/** What a task is called in a list: its name, or else what it runs. */
export function called(task: { name: string; command: string | string[] }): string {
  return task.name || command(task.command ?? "");
}

export function taskNumber(id: string): number {
  return Number(id.replace(/^task-/, ""));
}

/** What a person typed as a command: a plain text goes to the shell. "90m" or "2h" become seconds. */
export function seconds(text: string): number | null {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?\s*$/.exec(text);
  if (!found) return null;
  const unit = { s: 1, m: 60, min: 60, h: 3_600, d: 86_400 }[found[2] ?? "s"] ?? 1;
  return Number(found[1]) * unit;
}
