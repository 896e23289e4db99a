// A word after something was done. It goes by itself; what went wrong stays until it is read.
import { signal } from "@preact/signals";
import { asProblem } from "../api";
import { problemText, t } from "../i18n";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
  href?: string;
}

const toasts = signal<Toast[]>([]);
const MOST = 4;
const STAYS_MS = 6_000;
let last = 0;

export function say(text: string, href?: string): void {
  add({ id: ++last, text, bad: false, ...(href ? { href } : {}) });
}

export function complain(error: unknown): void {
  add({ id: ++last, text: problemText(asProblem(error)), bad: true });
}

function add(toast: Toast): void {
  toasts.value = [...toasts.value, toast].slice(-MOST);
  if (!toast.bad) window.setTimeout(() => drop(toast.id), STAYS_MS);
}

function drop(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite" data-testid="toasts">
      {toasts.value.map((toast) => (
        <div key={toast.id} class={toast.bad ? "toast bad" : "toast"}>
          {toast.href ? <a href={toast.href}>{toast.text}</a> : <span>{toast.text}</span>}
          <button type="button" class="plain" aria-label={t("common.close")} onClick={() => drop(toast.id)}>
            ✕
          </button>
        </div>
      ))}
    </div>
  );
}
