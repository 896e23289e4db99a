// Texts of the scheduler in the viewer's language: a code and its facts fill a template. The templates are those of
// the command line (src/dgpu/client/languages; client/language.py describes their form). Pure: the table comes in.
import { duration, megabytes, type Units } from "../format";

export type Facts = Readonly<Record<string, unknown>>;
export type Section = "problem" | "field" | "blocker" | "change" | "alert" | "ended" | "advice";
type Template = string | readonly Template[] | { readonly by: string; readonly cases: Readonly<Record<string, Template>> };
export type Table = { readonly unit: Units; readonly expected: Readonly<Record<string, string>>; readonly step: Readonly<Record<string, string>>; readonly error: Readonly<Record<string, string>>; readonly word: Readonly<Record<string, string>> } & { readonly [section in Section]: Readonly<Record<string, unknown>> };

const PART = /\[([^\]]*)\]|\{(\w+)(?::(\w+))?\}/g;
const HOLE = /\{(\w+)(?::(\w+))?\}/g;

/** Null: there is no template, or a fact of it is missing. */
export function fill(table: Table, section: Section, code: string, facts: Facts): string | null {
  const known = table[section];
  return Object.hasOwn(known, code) ? filled(known[code] as Template, facts, table) : null;
}

function filled(template: Template, facts: Facts, table: Table): string | null {
  if (typeof template !== "string") {
    if ("by" in template) {
      const chosen = template.cases[String(facts[template.by])];
      return chosen === undefined ? null : filled(chosen, facts, table);
    }
    for (const each of template) {
      const text = filled(each, facts, table);
      if (text !== null) return text;
    }
    return null;
  }
  let lacking = false;
  const text = template.replace(PART, (_, inner: string | undefined, name: string, form?: string) => {
    if (inner !== undefined) {
      const names = [...inner.matchAll(HOLE)].map((hole) => hole[1] ?? "");
      if (names.some((each) => isEmpty(facts[each]))) return "";
      return inner.replace(HOLE, (_hole, each: string, kind?: string) => shown(facts[each], kind, table));
    }
    const value = facts[name];
    if (value === undefined || value === null || value === "") lacking = true;
    return lacking ? "" : shown(value, form, table);
  });
  return lacking || !text ? null : text;
}

function isEmpty(value: unknown): boolean {
  return value === undefined || value === null || value === "" || value === 0 || value === false || (Array.isArray(value) && value.length === 0);
}

function shown(value: unknown, form: string | undefined, table: Table): string {
  if (form === "word") return wordOf(String(value), table);
  if (form === "time") return timeOf(value);
  if (Array.isArray(value)) return value.map(String).join("、");
  if (typeof value !== "number") return String(value);
  const make = form ? FORMATS[form] : undefined;
  return make ? make(value, table) : numberOf(value);
}

/** `tenant vision` is a word and a name. */
function wordOf(text: string, table: Table): string {
  const whole = table.word[text];
  if (whole) return whole;
  const at = text.indexOf(" ");
  const first = at < 0 ? text : text.slice(0, at);
  return (table.word[first] ?? first) + (at < 0 ? "" : text.slice(at));
}

function timeOf(value: unknown): string {
  const date = new Date(value as string | number);
  if (Number.isNaN(date.getTime())) return String(value);
  const two = (part: number) => String(part).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function numberOf(value: number): string {
  return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
}

const FORMATS: Record<string, (value: number, table: Table) => string> = {
  duration: (value, table) => duration(value, table.unit),
  seconds: (value, table) => duration(value * 1_000, table.unit),
  mb: (value) => megabytes(value),
  gpus: (value) => numberOf(value / 1_000),
  percent: (value) => `${(value * 100).toFixed(0)} %`,
  milli_percent: (value) => `${Number((value / 10).toPrecision(6))} %`,
};

/**
 * Texts without a code: a pattern of the English text stands for it, `{}` is a part, `{0}` the first one.
 * `within`: how deep the parts of a text are looked up, too.
 */
export function byPattern(table: Patterns, english: string, within = 0): string {
  for (const [pattern, text] of compiled(table)) {
    const match = pattern.exec(english);
    if (!match) continue;
    const parts = match.slice(1).map((part) => (within ? byPattern(table, part, within - 1) : part));
    const parted = text.replace(NUMBERED, (_, at: string) => parts[Number(at)] ?? "");
    if (parted !== text) return unbraced(parted);
    return text
      .split(GAP)
      .map((part, place) => (place ? (parts[place - 1] ?? "") : "") + unbraced(part))
      .join("");
  }
  return english;
}

type Patterns = Readonly<Record<string, string>>;
const known = new WeakMap<Patterns, [RegExp, string][]>();

/** Those with the longest fixed text first. */
function compiled(table: Patterns): [RegExp, string][] {
  let made = known.get(table);
  if (!made) {
    const ordered = Object.entries(table).toSorted(([a], [b]) => fixed(b) - fixed(a));
    made = ordered.map(([pattern, text]) => {
      const parts = pattern.split(GAP).map((part) => unbraced(part).replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
      return [new RegExp(`^${parts.join("(.+?)")}$`, "s"), text];
    });
    known.set(table, made);
  }
  return made;
}

const NUMBERED = /\{(\d)\}/g;
const GAP = /(?<!\{)\{\}(?!\})/;

function fixed(pattern: string): number {
  return pattern.replaceAll("{}", "").length;
}

/** Doubled braces stand for braces. */
function unbraced(text: string): string {
  return text.replaceAll("{{", "{").replaceAll("}}", "}");
}
