// The state of the cluster as the server streams it: a snapshot, then one small change a second.
import type { Board, BoardHistory, BoardPoint, Changed, Delta } from "../types";

const MAX_POINTS = 120;
const WHOLE = ["pools", "quota", "tenants", "tenants_more", "alerts", "ready", "epoch"] as const;

/** The board after a change; null when the change does not follow this board and a snapshot is needed. */
export function applyDelta(board: Board, delta: Delta): Board | null {
  if (delta.seq !== board.seq + 1) return null;
  const next: Board = { ...board, seq: delta.seq, index: delta.index, at_ms: delta.at_ms };
  for (const name of WHOLE) {
    if (name in delta) Object.assign(next, { [name]: delta[name] });
  }
  if (delta.gpus) next.gpus = patched(board.gpus, delta.gpus);
  if (delta.nodes) next.nodes = patched(board.nodes, delta.nodes);
  if (delta.counts) next.counts = { ...board.counts, ...delta.counts };
  if (delta.point) next.history = appended(board.history, delta.point);
  return next;
}

/** Only columns that change are copied: what is drawn may compare them by identity. */
function patched<C extends object>(columns: C, patches: Record<string, Changed>): C {
  const next = { ...columns } as Record<string, unknown>;
  for (const [name, { i, v }] of Object.entries(patches)) {
    const column = next[name];
    if (!Array.isArray(column)) continue; // a column of a newer server
    const copy = column.slice();
    i.forEach((place, at) => {
      if (place < copy.length) copy[place] = v[at];
    });
    next[name] = copy;
  }
  return next as C;
}

function appended(history: BoardHistory, point: BoardPoint): BoardHistory {
  return {
    step_ms: history.step_ms,
    at_ms: longer(history.at_ms, point.at_ms),
    util: longer(history.util, point.util),
    waiting: longer(history.waiting, point.waiting),
    running: longer(history.running, point.running),
    wait_p50_ms: longer(history.wait_p50_ms, point.wait_p50_ms),
    finished_per_min: longer(history.finished_per_min, point.finished_per_min),
  };
}

function longer<T>(trace: T[], value: T): T[] {
  return [...trace, value].slice(-MAX_POINTS);
}

/** The node that could give most GPUs to one task now. */
export function largestBlock(board: Board): { gpus: number; node: string } {
  const idle = board.statuses.indexOf("idle");
  const best = { gpus: 0, node: "" };
  board.nodes.id.forEach((id, node) => {
    const first = board.nodes.first[node] ?? 0;
    let free = 0;
    for (let place = first; place < first + (board.nodes.gpus[node] ?? 0); place++) if (board.gpus.status[place] === idle) free++;
    if (free > best.gpus) Object.assign(best, { gpus: free, node: id });
  });
  return best;
}

/** One GPU out of the columns, with words for its codes. */
export function gpuAt(board: Board, place: number) {
  const g = board.gpus;
  const node = g.node[place] ?? 0;
  return {
    place,
    id: g.id[place] ?? "",
    node: board.nodes.id[node] ?? "",
    index: g.index[place] ?? 0,
    model: board.models[g.model[place] ?? -1] ?? "",
    status: board.statuses[g.status[place] ?? -1] ?? "offline",
    health: board.healths[g.health[place] ?? -1] ?? "",
    util: g.util[place] ?? null,
    memTotal: g.mem_total[place] ?? 0,
    memUsed: g.mem_used[place] ?? null,
    memForeign: g.mem_foreign[place] ?? 0,
    memReserved: g.mem_reserved[place] ?? 0,
    temp: g.temp[place] ?? null,
    power: g.power[place] ?? null,
    tasks: g.tasks[place] ?? [],
    taskCount: g.task_count[place] ?? 0,
    fault: g.fault[place] ?? "",
    warm: g.warm[place] ?? [],
  };
}

export type GpuCell = ReturnType<typeof gpuAt>;
