// What a list says of a task, or of an array in one row. Pure but for the clock.
import { megabytes, number, parseTime } from "../format";
import { endText, t, waitingText } from "../i18n";
import { now } from "../now";
import type { Task, TaskStatus } from "../types";

/** The id that means this row: the array, one task of it, or the task. */
export function idOf(task: Task): string {
  return task.array ? (task.array_id ?? task.task_id) : (task.element_id ?? task.task_id);
}

/** The number of the first task of an array means the array. */
export function addressOf(task: Task): string {
  return `/tasks/${task.task_id === task.array_id || task.array ? idOf(task) : task.task_id}`;
}

/** Of an array: what is still to come, then the worst end. */
export function statusOf(task: Task): TaskStatus {
  const { array } = task;
  if (!array) return task.status;
  return (["running", "pending", "failed", "cancelled"] as const).find((status) => array[status] > 0) ?? "success";
}

export function isLive(task: Task): boolean {
  return liveOf(task) > 0;
}

/** How many tasks of the row wait or run. */
export function liveOf(task: Task): number {
  if (task.array) return task.array.pending + task.array.running;
  return task.status === "pending" || task.status === "running" ? 1 : 0;
}

export function gpusOf(task: Task): string {
  if (task.nodes > 1) return `${task.nodes} × ${task.gpu_count}`;
  if (task.shared && task.gpu_memory_mb) return megabytes(task.gpu_memory_mb); // its part of a card is its memory
  return number(task.gpu_share < 1 ? task.gpu_share : task.gpu_count, 3);
}

export function whereOf(task: Task): string {
  if (task.status === "pending") return waitingText(task);
  if (task.status === "running") return waitingText(task) || (task.allocated_nodes?.length > 1 ? task.allocated_nodes.join(", ") : (task.node ?? ""));
  if (task.status === "failed") return endText(task) || t("tasks.exit", { code: task.exit_code ?? "?" });
  return task.node ?? "";
}

/** How long it waits, runs, or ran. */
export function timeOf(task: Task): number | null {
  const from = parseTime(task.started_at) ?? (task.status === "pending" ? parseTime(task.created_at) : null);
  if (from === null) return null;
  return Math.max(0, (parseTime(task.finished_at) ?? now.value) - from);
}
