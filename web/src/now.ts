// The server's time, once a second: what is "3 s ago" must not depend on how well this machine's clock is set.
import { signal } from "@preact/signals";
import { clockSkewMs } from "./board/stream";

export const now = signal(Date.now());

export function startClock(): void {
  const tick = () => {
    if (!document.hidden) now.value = Date.now() + clockSkewMs.value;
  };
  window.setInterval(tick, 1_000);
  document.addEventListener("visibilitychange", tick);
}
