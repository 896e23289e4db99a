// One typed table of messages per language. A missing message is a type error, not a blank on the page.
import { signal } from "@preact/signals";
import zhTemplates from "../../../src/dgpu/client/languages/zh.json";
import { brief as briefIn, duration as durationIn, ENGLISH_UNITS, type Language, type Units } from "../format";
import type { Alert, Blocker, Problem, Task } from "../types";
import { en, type MessageKey, type Messages } from "./en";
import { byPattern, fill, type Facts, type Section, type Table } from "./told";
import { zh } from "./zh";

const TABLES: Record<Language, Messages> = { en, zh };
/** For texts that the scheduler writes in English. */
const TEMPLATES: Record<Language, Table | null> = { en: null, zh: zhTemplates };

const MAX_PARTS = 3; // of an error, one in another

function chosen(): Language {
  try {
    const kept = localStorage.getItem("dgpu.language");
    if (kept === "en" || kept === "zh") return kept;
  } catch {
    // storage may be forbidden
  }
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

export const language = signal<Language>(chosen());

export function setLanguage(next: Language): void {
  language.value = next;
  document.documentElement.lang = next === "zh" ? "zh-CN" : "en";
  try {
    localStorage.setItem("dgpu.language", next);
  } catch {
    // it holds for this page, then
  }
}

/** `{name}` is a value; `{n|task|tasks}` is the first word for one and the second for any other number. */
export function t(key: MessageKey, values: Record<string, string | number> = {}): string {
  // A key made from a word of a newer server is in no table. The type checker cannot see that.
  const text = (TABLES[language.value] as Partial<Messages>)[key] ?? key.slice(key.indexOf(".") + 1);
  return text.replace(/\{(\w+)(?:\|([^|}]*)\|([^|}]*))?\}/g, (hole, name: string, one?: string, several?: string) => {
    if (one === undefined) return String(values[name] ?? hole);
    return String(values[name]) === "1" ? one : (several ?? one);
  });
}

/** A text of the scheduler: from its code and facts in the viewer's language, or else as it was sent. */
export function told(section: Section, code: string, facts: Facts, english: string): string {
  const table = TEMPLATES[language.value];
  if (!table) return english;
  const shown = section === "ended" && typeof facts.error === "string" ? { ...facts, error: byPattern(table.error, facts.error, MAX_PARTS) } : facts;
  return fill(table, section, code, { detail: english, ...shown }) ?? english;
}

export function problemText(problem: Problem): string {
  if (problem.code === "unreachable") return t("problem.unreachable");
  return told("problem", problem.code, problem.facts ?? {}, problem.detail);
}

export function fieldText(error: { detail: string; code: string; facts?: Facts }): string {
  const facts = error.facts ?? {};
  const table = TEMPLATES[language.value];
  const shown = table && typeof facts.expected === "string" ? { ...facts, expected: byPattern(table.expected, facts.expected) } : facts;
  return told("field", error.code, shown, error.detail);
}

/** A step of a service with its cause. */
export function stepText(english: string): string {
  const table = TEMPLATES[language.value];
  return table ? byPattern(table.step, english) : english;
}

export function blockerText(blocker: Blocker): string {
  return told("blocker", String(blocker.code), blocker, String(blocker.detail ?? ""));
}

/** Why a task waits, in one line. */
export function waitingText(task: Task): string {
  const reasons = task.blockers ?? [];
  const texts = reasons.map((reason) => told("blocker", String(reason.code), reason, ""));
  return texts.length && texts.every(Boolean) ? texts.join("；") : task.waiting;
}

/** How a task ended. */
export function endText(task: Task): string {
  return task.reason ? told("ended", task.reason, { ...task }, task.error || task.reason) : task.error;
}

export function alertText(alert: Alert): string {
  return told("alert", alert.rule, alert.facts, alert.summary);
}

export function duration(ms: number | null | undefined): string {
  return durationIn(ms, units());
}

export function brief(ms: number | null | undefined): string {
  return briefIn(ms, units());
}

function units(): Units {
  return TEMPLATES[language.value]?.unit ?? ENGLISH_UNITS;
}

/** A word of the server in the viewer's language; what this page does not know is shown as it came. */
export function word(group: string, value: string | null | undefined): string {
  const key = `${group}.${value ?? ""}`;
  return key in en ? t(key as MessageKey) : String(value ?? "").replaceAll("_", " ");
}

export type { MessageKey } from "./en";
