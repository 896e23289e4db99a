import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const ORDER: Theme[] = ["system", "light", "dark"];

function kept(): Theme {
  const given = document.documentElement.dataset.theme;
  return given === "light" || given === "dark" ? given : "system";
}

export const theme = signal<Theme>(kept());
/** Counts changes of the colours on screen, for what is drawn on a canvas. */
export const paints = signal(0);

export function nextTheme(): void {
  const next = ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length] ?? "system";
  theme.value = next;
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("dgpu.theme", next);
  } catch {
    // it holds for this page, then
  }
  paints.value++;
}

export function watchTheme(): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paints.value++);
}

/** A colour of the palette as it is now. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
