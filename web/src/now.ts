// The server's time, once a second: what is "3 s ago" must not depend on how well this machine's clock is set.
import { signal } from "@preact/signals";
import { clockSkewMs, link, seenAt, type Link } from "./board/stream";

export const now = signal(Date.now());
export const here = signal(Date.now()); // this machine's time, which goes on without a server

export function startClock(): void {
  const tick = () => {
    if (document.hidden) return;
    here.value = Date.now();
    now.value = momentShown(here.value, link.value, seenAt.value) + clockSkewMs.value;
  };
  window.setInterval(tick, 1_000);
  document.addEventListener("visibilitychange", tick);
}

/** Without a connection nobody knows how long a task has run: the page stays at the moment it was last told of. */
export function momentShown(local: number, state: Link, seen: number): number {
  return seen && (state === "lost" || state === "locked") ? seen : local;
}
