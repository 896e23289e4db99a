// What the timeline shows: bars of the past from the history, and where waiting tasks are expected to start.
import { useEffect, useMemo } from "preact/hooks";
import { get } from "../api";
import { onTasks } from "../board/stream";
import { called, parseTime } from "../format";
import type { QueueEntry, QueuePage, Timeline, Why } from "../types";
import { useAsked, useThrottled, type Asked } from "../ui/asked";
import type { Bar, Range } from "./scale";
import type { Lane, Scene } from "./draw";

const MAX_EXPECTED = 8;
const EXPECTED_MS = 20_000; // each of them is worked out by the scheduler: not too often

export interface Bars {
  total: number;
  truncated: boolean;
  bars: Bar[];
}

/** A wider piece than is shown, so that panning a little asks nothing. */
export function askedRange(range: Range): Range {
  const span = range.to - range.from;
  const grain = span / 2;
  return { from: Math.floor((range.from - grain / 2) / grain) * grain, to: Math.ceil((range.to + grain / 2) / grain) * grain };
}

export function useBars(range: Range, now: number, nodes: string[]): Asked<Bars> {
  const wide = askedRange(range);
  const until = Math.min(wide.to, now);
  const named = nodes.join(",");
  const live = wide.to >= now;
  const key = `${Math.round(wide.from)} ${live ? "now" : Math.round(until)} ${named}`;
  const asked = useAsked<Bars>(
    key,
    async (signal) => {
      const query = { since: new Date(wide.from).toISOString(), until: live ? "now" : new Date(until).toISOString(), nodes: named || null, limit: 5_000 };
      const told = await get<Timeline>("/api/v1/history/timeline", query, signal);
      return { ...told, bars: told.bars.map((bar) => ({ ...bar, start: parseTime(bar.start) ?? 0, end: parseTime(bar.end) })) };
    },
    live ? 10_000 : 0,
  );
  const refresh = useThrottled(asked.refresh, 3_000);
  useEffect(() => (live ? onTasks(refresh) : undefined), [live, key]);
  return asked;
}

type Waiting = Pick<QueueEntry, "task_id" | "name" | "command" | "tenant_id" | "pool">;

export interface Expected {
  bar: Bar;
  until: number; // by when it has started in nine cases of ten
  reserved: { gpus: string[]; at: number } | null; // the GPUs it gets, and by when
}

/** The first of the queue, where the forecast knows when they start. */
export function useExpected(inView: boolean): Expected[] {
  const asked = useAsked<Expected[]>(inView ? "expected" : "", expectedStarts, EXPECTED_MS);
  return useMemo(() => asked.data ?? [], [asked.data]);
}

async function expectedStarts(signal: AbortSignal): Promise<Expected[]> {
  const { queue } = await get<QueuePage>("/api/v1/queue", { limit: MAX_EXPECTED }, signal);
  const found = await Promise.all(queue.map((task) => expectedStart(task, signal).catch(() => null)));
  return found.filter((each) => each !== null);
}

async function expectedStart(task: Waiting, signal: AbortSignal): Promise<Expected | null> {
  const why = await get<Why>(`/api/v1/tasks/${task.task_id}/why`, {}, signal);
  return expectedOf(task, why);
}

/** Null where neither the forecast nor a reservation knows a time. */
export function expectedOf(task: Waiting, why: Why): Expected | null {
  const at = parseTime(why.reservation?.at);
  const start = parseTime(why.expected_start?.p50) ?? at;
  if (start === null) return null;
  const late = parseTime(why.expected_start?.p90) ?? start;
  const reserved = at === null || !why.reservation ? null : { gpus: why.reservation.gpus, at };
  const bar: Bar = { ...task, name: called(task), attempt: 1, node: "", gpu_ids: [], start, end: null, status: "pending", reason: why.blockers[0]?.detail ?? "" };
  return { bar, until: late, reserved };
}

/** What waiting tasks will get, by GPU. */
export function reservedOf(lanes: Lane[]): Scene["reserved"] {
  const found: Scene["reserved"] = new Map();
  for (const { expected } of lanes) {
    for (const gpu of expected?.reserved?.gpus ?? []) {
      found.set(gpu, [...(found.get(gpu) ?? []), { bar: expected!.bar, at: expected!.reserved!.at }]);
    }
  }
  return found;
}
