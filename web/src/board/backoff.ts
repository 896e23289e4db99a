// How long to wait before the next try to connect: doubling, bounded, and never all browsers at once.
const FIRST_MS = 1_000;
const MAX_MS = 30_000;

export function delayMs(failures: number, random: () => number = Math.random): number {
  const whole = Math.min(MAX_MS, FIRST_MS * 2 ** Math.min(failures, 10));
  return Math.round(whole / 2 + (whole / 2) * random());
}
