// One typed table of messages per language. A missing message is a type error, not a blank on the page.
import { signal } from "@preact/signals";
import type { Language } from "../format";
import { en, type MessageKey, type Messages } from "./en";
import { zh } from "./zh";

const TABLES: Record<Language, Messages> = { en, zh };

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

export function t(key: MessageKey, values: Record<string, string | number> = {}): string {
  // A key made from a word of a newer server is in no table. The type checker cannot see that.
  const text = (TABLES[language.value] as Partial<Messages>)[key] ?? key.slice(key.indexOf(".") + 1);
  return text.replace(/\{(\w+)\}/g, (hole, name: string) => String(values[name] ?? hole));
}

/** A word of the server in the viewer's language; what this page does not know is shown as it came. */
export function word(group: string, value: string | null | undefined): string {
  const key = `${group}.${value ?? ""}`;
  return key in en ? t(key as MessageKey) : String(value ?? "").replaceAll("_", " ");
}

export type { MessageKey } from "./en";
