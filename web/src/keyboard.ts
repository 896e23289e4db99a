// Keys for the whole page. Fields keep theirs; Esc leaves a field.
import { signal } from "@preact/signals";
import { may } from "./me";
import { go } from "./router";

export const helpShown = signal(false);

const KEPT = "dgpu.keys";

/** Single letters disturb some readers and speech input (WCAG 2.1.4): they can be turned off. */
export const keysOn = signal(kept() !== "off");

export function setKeys(on: boolean): void {
  keysOn.value = on;
  try {
    localStorage.setItem(KEPT, on ? "on" : "off");
  } catch {
    // it holds for this page, then
  }
}

function kept(): string | null {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null; // storage may be forbidden
  }
}

/** `action`: only for viewers that may do it. */
export const PLACES: [key: string, view: string, action?: string][] = [
  ["c", "cluster"],
  ["t", "tasks"],
  ["v", "services"],
  ["w", "workers"],
  ["l", "timeline"],
  ["e", "tenants"],
  ["q", "quota"],
  ["n", "nodes"],
  ["a", "alerts", "alert.read"],
  ["u", "audit", "audit.read"],
  ["k", "tokens", "token.read"],
  ["s", "secrets", "secret.read"],
];

export function placesOfViewer(): typeof PLACES {
  return PLACES.filter(([, , action]) => !action || may(action));
}

const CHORD_MS = 1_500;

export interface RowKeys {
  count: number;
  rowOf(element: Element): number; // -1: in no row
  show(row: number): void;
  open(row: number): void;
  select?(row: number): void;
}

let rows: RowKeys | null = null;
let row = -1; // kept here: keys come faster than pages are drawn
let chordUntil = 0;

/** The table that j, k, Enter and x speak to, from its top. */
export function takeRows(keys: RowKeys): () => void {
  rows = keys;
  row = -1;
  return () => {
    if (rows === keys) rows = null;
  };
}

export function startKeyboard(): void {
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return;
    const target = event.target as HTMLElement;
    if (target.closest("dialog[open]")) return;
    if (target.matches("input, textarea, select")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (keysOn.value && press(event.key, target)) event.preventDefault();
  });
}

function press(key: string, target: HTMLElement): boolean {
  if (Date.now() < chordUntil) {
    chordUntil = 0;
    const place = placesOfViewer().find(([letter]) => letter === key);
    if (place) go(place[1] === "cluster" ? "/" : `/${place[1]}`);
    return place !== undefined;
  }
  switch (key) {
    case "g":
      chordUntil = Date.now() + CHORD_MS;
      return true;
    case "/":
      document.querySelector<HTMLInputElement>("[data-search]")?.focus();
      return true;
    case "?":
      helpShown.value = true;
      return true;
    case "c":
      if (may("task.submit")) go("/submit");
      return true;
    default:
      return pressInRows(key, target);
  }
}

function pressInRows(key: string, target: HTMLElement): boolean {
  if (!rows) return false;
  if (key === "j" || key === "k") {
    const focused = rows.rowOf(target);
    row = Math.max(0, Math.min(rows.count - 1, (focused < 0 ? row : focused) + (key === "j" ? 1 : -1)));
    rows.show(row);
    return true;
  }
  if (row < 0 || row >= rows.count) return false;
  if (key === "x" && rows.select) rows.select(row);
  else if (key === "Enter" && !target.closest("a, button, [role=application]")) rows.open(row);
  else return false;
  return true;
}
