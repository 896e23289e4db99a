// Time on a line: where a moment is drawn, which moments get a label, and what zooming and panning do. Pure.
import type { WireBar } from "../types";

export interface Range {
  from: number; // ms
  to: number;
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
export const SHORTEST = 10 * MINUTE;
export const LONGEST = 8 * DAY;
const STEPS = [MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY];

export function xOf(at: number, range: Range, width: number): number {
  return ((at - range.from) / (range.to - range.from)) * width;
}

export function timeAt(x: number, range: Range, width: number): number {
  return range.from + (x / Math.max(1, width)) * (range.to - range.from);
}

/** The same moment stays under the pointer. */
export function zoomed(range: Range, factor: number, around: number): Range {
  const span = range.to - range.from;
  const next = Math.min(LONGEST, Math.max(SHORTEST, span * factor));
  const part = (around - range.from) / span;
  const from = around - part * next;
  return { from, to: from + next };
}

export function panned(range: Range, byMs: number): Range {
  return { from: range.from + byMs, to: range.to + byMs };
}

/** Not further into the future than a forecast may reach. */
export function bounded(range: Range, now: number): Range {
  const span = range.to - range.from;
  const latest = now + span / 2;
  return range.to > latest ? { from: latest - span, to: latest } : range;
}

/** Round moments of the viewer's own clock, at least `space` pixels apart. */
export function ticks(range: Range, width: number, zoneMinutes: number, space = 90): { at: number; isDay: boolean }[] {
  const wanted = ((range.to - range.from) / Math.max(1, width)) * space;
  const step = STEPS.find((each) => each >= wanted) ?? DAY * Math.ceil(wanted / DAY);
  const zone = zoneMinutes * MINUTE;
  const first = Math.ceil((range.from + zone) / step) * step - zone;
  const found = [];
  for (let at = first; at <= range.to; at += step) found.push({ at, isDay: (at + zone) % DAY === 0 });
  return found;
}

/** Times are ms here. */
export type Bar = Omit<WireBar, "start" | "end" | "priority"> & { start: number; end: number | null };

export interface Placed {
  bar: Bar;
  row: number; // of those that share the card at the time
  rows: number; // how many do
}

const MAX_ROWS = 4;

/** Bars by card; those that share a card at the same time lie beside each other, the others have it to themselves. */
export function byGpu(bars: Bar[], now: number): Map<string, Placed[]> {
  const lanes = new Map<string, { placed: Placed[]; group: Placed[]; ends: number[]; until: number }>();
  for (const bar of bars.toSorted((a, b) => a.start - b.start)) {
    const end = bar.end ?? now;
    for (const gpu of bar.gpu_ids) {
      let lane = lanes.get(gpu);
      if (!lane) lanes.set(gpu, (lane = { placed: [], group: [], ends: [], until: 0 }));
      if (bar.start >= lane.until) [lane.group, lane.ends] = [[], []];
      const free = lane.ends.findIndex((taken) => taken <= bar.start);
      const row = Math.min(MAX_ROWS - 1, free < 0 ? lane.ends.length : free);
      lane.ends[row] = Math.max(lane.ends[row] ?? 0, end);
      lane.until = Math.max(lane.until, end);
      const placed = { bar, row, rows: 1 };
      lane.placed.push(placed);
      lane.group.push(placed);
      for (const each of lane.group) each.rows = lane.ends.length;
    }
  }
  return new Map([...lanes].map(([gpu, lane]) => [gpu, lane.placed]));
}

/** A number below `count` for each name: different ones as long as they last, the same ones for the same names. */
export function huesOf(names: Iterable<string>, count: number): Map<string, number> {
  return new Map([...new Set(names)].sort().map((name, at) => [name, at % count]));
}
