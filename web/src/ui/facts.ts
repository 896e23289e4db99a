// The facts of an event, in one line.
import { exact } from "../format";
import { language, t, told, word } from "../i18n";

const SKIPPED = new Set(["task_id", "lease_id", "severity"]);
const TIMES = /_(at|since|until)$/;

export function factsText(facts: Record<string, unknown>, also: string[] = []): string {
  return Object.entries(facts)
    .filter(([name, value]) => !SKIPPED.has(name) && !also.includes(name) && value !== null && value !== "")
    .map(([name, value]) => `${word("fact", name)} ${shown(name, value)}`)
    .join(" · ");
}

function shown(name: string, value: unknown): string {
  if (Array.isArray(value)) return value.map(String).join(", ");
  if (typeof value === "boolean") return t(value ? "common.yes" : "common.no");
  if (typeof value !== "string") return typeof value === "object" ? JSON.stringify(value) : String(value);
  if (name === "reason") return told("ended", value, {}, value.replaceAll("_", " "));
  if (name === "status") return word("status", value);
  if (name === "before" || name === "after") return word("health", value);
  const at = TIMES.test(name) ? Date.parse(value) : Number.NaN;
  return Number.isNaN(at) ? value : exact(at, language.value);
}
