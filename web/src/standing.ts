// The part of this scheduler among several: master or standby, the age of its data, and where the others are.
import { computed, effect, signal } from "@preact/signals";
import { board, link } from "./board/stream";

const LOOK_MS = 5_000;

/** The part of the answer of /ready that is about several schedulers. A scheduler that is alone names no other one. */
export interface Standing {
  role: string;
  lag_ms?: number | null; // null: it has not read the journal yet
  master?: string;
  schedulers?: string[];
}

export const standing = signal<Standing | null>(null);
export const isStandby = computed(() => (standing.value?.role ?? board.value?.role ?? "master") !== "master");

/** Looks whenever the stream opens; again and again only if there are several schedulers. */
export function watchStanding(): void {
  effect(() => {
    if (link.value === "live") void look();
  });
  window.setInterval(() => {
    if (!document.hidden && link.value === "live" && standing.value && !isAlone(standing.value)) void look();
  }, LOOK_MS);
}

async function look(): Promise<void> {
  try {
    const answer = await fetch("/ready"); // 503 has a body, too
    const told = (await answer.json()) as Partial<Standing>;
    if (typeof told.role === "string") standing.value = { ...told, role: told.role };
  } catch {
    // the stream notices a scheduler that is gone
  }
}

export function isAlone(told: Standing): boolean {
  return told.role === "master" && !told.master && !told.schedulers?.length;
}

/** Actions that a standby can do: it answers reads, and a what-if changes nothing. */
export function isDoneByStandby(action: string): boolean {
  return action.endsWith(".read") || action === "whatif.ask";
}

/** Addresses of the other schedulers: the master first, each once. */
export function othersOf(told: Standing | null, own: string): string[] {
  const named = [told?.master ?? "", ...(told?.schedulers ?? [])].map(addressOf);
  return [...new Set(named)].filter((address) => address && address !== own);
}

/** Empty for anything but a web address: a link must not run a script. */
export function addressOf(text: string): string {
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.origin : "";
  } catch {
    return "";
  }
}
