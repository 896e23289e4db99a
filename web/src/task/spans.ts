// The life of a task as stretches of time: waiting, starting, running, once or several times. Pure.
import { parseTime } from "../format";
import type { Attempt, Task, TaskEvent } from "../types";

export type Stretch = "waiting" | "starting" | "running";

export interface Span {
  kind: Stretch;
  from: number;
  to: number;
  attempt: number;
  open: boolean; // still going on
  outcome: string; // of a run that ended: the task's status, or requeued
}

type Run = Pick<Attempt, "attempt" | "placed_at" | "started_at" | "ended_at">;

export function spansOf(task: Task, events: TaskEvent[], nowMs: number): Span[] {
  const created = parseTime(task.created_at) ?? nowMs;
  const finished = parseTime(task.finished_at);
  const end = Math.max(created, finished ?? nowMs);
  const runs = task.attempts?.length ? task.attempts : runsOf(events);
  const spans: Span[] = [];
  let from = created;
  const add = (kind: Stretch, to: number, attempt: number, open: boolean, outcome = "") => {
    if (to > from || open) spans.push({ kind, from, to: Math.max(from, to), attempt, open, outcome });
    from = Math.max(from, to);
  };
  runs.forEach((run, at) => {
    const placed = parseTime(run.placed_at) ?? parseTime(run.started_at);
    if (placed === null) return;
    const started = parseTime(run.started_at);
    const ended = parseTime(run.ended_at);
    add("waiting", placed, run.attempt, false);
    if (started === null) {
      add("starting", ended ?? end, run.attempt, ended === null && finished === null);
      return;
    }
    add("starting", started, run.attempt, false);
    const last = at === runs.length - 1 && finished !== null;
    add("running", ended ?? end, run.attempt, ended === null && finished === null, ended === null && finished === null ? "" : last ? task.status : "requeued");
  });
  if (task.status === "pending") add("waiting", end, task.attempt + 1, true);
  else if (finished !== null && spans.length === 0) add("waiting", end, 0, false);
  return spans;
}

/** For a server that does not list attempts: the same out of the events. */
function runsOf(events: TaskEvent[]): Run[] {
  const runs: Run[] = [];
  for (const event of events) {
    const run = runs.at(-1);
    if (event.type === "task_scheduled") runs.push({ attempt: Number(event.facts.attempt ?? runs.length + 1), placed_at: event.at, started_at: null, ended_at: null });
    else if (run && event.type === "task_started") run.started_at = typeof event.facts.started_at === "string" ? event.facts.started_at : event.at;
    else if (run && (event.type === "task_finished" || event.type === "task_requeued")) run.ended_at = event.at;
  }
  return runs;
}
