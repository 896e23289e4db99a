// The state of the cluster as the server streams it: a snapshot, then one small change a second.

export interface GpuColumns {
  id: string[];
  node: number[];
  index: number[];
  model: number[];
  mem_total: number[];
  status: number[];
  health: number[];
  util: (number | null)[];
  mem_used: (number | null)[];
  mem_foreign: number[];
  mem_reserved: number[];
  temp: (number | null)[];
  power: (number | null)[];
  tasks: number[][];
  task_count: number[];
  fault: string[];
  warm: string[][];
}

export interface NodeColumns {
  id: string[];
  status: number[];
  first: number[];
  gpus: number[];
  labels: Record<string, string>[];
  reason: string[];
  since_ms: number[];
}

export interface PoolState {
  quota: number;
  used: number;
  available: number;
  borrowed: number;
  waiting: number;
}

export interface TenantState {
  id: string;
  used: number;
  running: number;
  waiting: number;
  gpu_hours: number;
  share: number;
  max_gpus: number | null;
}

export interface Counts {
  waiting: number;
  running: number;
  ended: number;
  finished_per_min: number;
  started_per_min: number;
  util: number | null;
  idle: number;
  busy: number;
  offline: number;
  error: number;
  draining: number;
  reserved: number;
  unconfirmed: number;
  nodes: Record<string, number>;
  wait_p50_ms: number | null;
  wait_p95_ms: number | null;
  browsers: number;
}

const TRACES = ["at_ms", "util", "waiting", "running", "wait_p50_ms", "finished_per_min"] as const;
export type Trace = (typeof TRACES)[number];
export type History = { step_ms: number } & Record<Trace, (number | null)[]>;

export interface Board {
  seq: number;
  index: number;
  at_ms: number;
  role: string;
  version: string;
  build?: string; // of the page that this server serves
  ready: boolean;
  statuses: string[];
  node_statuses: string[];
  healths: string[];
  models: string[];
  nodes: NodeColumns;
  gpus: GpuColumns;
  pools: Record<string, PoolState>;
  quota: { total_gpus: number; online_percent: number; mode: string; reclaim: string };
  tenants: TenantState[];
  tenants_more?: number;
  counts: Counts;
  alerts: { firing: number; pending: number; acknowledged?: number } | null;
  history: History;
}

interface Patch {
  i: number[];
  v: unknown[];
}

export interface Delta {
  seq: number;
  index: number;
  at_ms: number;
  gpus?: Record<string, Patch>;
  nodes?: Record<string, Patch>;
  counts?: Partial<Counts>;
  point?: Partial<Record<Trace, number | null>>;
  changed?: number[];
  changed_more?: boolean;
  [whole: string]: unknown;
}

const MAX_POINTS = 120;
const WHOLE = ["pools", "quota", "tenants", "tenants_more", "alerts", "ready", "role"] as const;

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
function patched<C extends object>(columns: C, patches: Record<string, Patch>): C {
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

function appended(history: History, point: Partial<Record<Trace, number | null>>): History {
  const next = { step_ms: history.step_ms } as History;
  for (const name of TRACES) next[name] = [...history[name], point[name] ?? null].slice(-MAX_POINTS);
  return next;
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
