// The shapes of the server's answers, as far as the pages read them.

export type TaskStatus = "pending" | "running" | "success" | "failed" | "cancelled";

export interface FieldProblem {
  path: string;
  detail: string;
  code?: string;
}

export interface Problem {
  status: number;
  title: string;
  detail: string;
  code: string;
  errors?: FieldProblem[];
  request_id?: string;
}

export interface Attempt {
  attempt: number;
  node: string | null;
  nodes?: string[];
  gpus?: string[];
  placed_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  exit_code: number | null;
  reason: string;
  error: string;
}

export interface OutputPlace {
  bytes: number | null;
  missing: { begin: number; end: number }[];
  node: string | null;
  node_connected: boolean;
  kept_until: string | null;
}

export interface Task {
  task_id: string;
  name: string;
  tenant_id: string;
  pool: string;
  status: TaskStatus;
  priority: number;
  gpu_count: number;
  gpu_model: string[];
  gpu_memory_mb: number;
  shared: boolean;
  gpu_share: number;
  constraints: string[];
  cpus: number;
  ram_mb: number;
  nodes: number;
  allocated_gpus: string[];
  allocated_nodes: string[];
  node: string | null;
  attempt: number;
  retries: number;
  max_retries: number;
  restart: string;
  allocation: boolean;
  held: boolean;
  after: { task_id: string; when: string }[];
  array_id: string | null;
  array_index: number | null;
  array_count: number | null;
  cancelling: boolean;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  exit_code: number | null;
  error: string;
  reason: string;
  waiting: string;
  command: string | string[];
  env: string[];
  workdir: string;
  own_workdir?: boolean;
  timeout_seconds: number | null;
  labels: Record<string, string>;
  model_name: string;
  attempts?: Attempt[];
}

export interface FileEntry {
  path: string;
  kind: "file" | "directory" | "link" | "other";
  size_bytes: number;
  modified_at: string;
  target: string;
}

export interface FileList {
  node: string;
  workdir: string;
  path: string;
  files: FileEntry[];
  gone: boolean;
  next_cursor: string | null;
}

export interface TaskPage {
  tasks: Task[];
  total: number;
  total_is_exact?: boolean;
  next_cursor: string | null;
}

export interface TaskEvent {
  index: number;
  at: string;
  type: string;
  facts: Record<string, unknown>;
}

export interface ExpectedStart {
  p50: string;
  p90: string;
  median_error_seconds: number | null;
  age_seconds: number;
}

export interface Blocker extends Record<string, unknown> {
  code: string;
  detail: string;
}

/** Nobody behind the task may delay this. */
export interface Reservation {
  at: string | null; // null: unknown
  nodes: string[];
  gpus: string[];
}

export interface Why {
  task_id: string;
  status: TaskStatus;
  summary: string;
  position: number | null;
  ahead: string[];
  ahead_total: number;
  blockers: Blocker[];
  expected_start: ExpectedStart | null;
  reservation: Reservation | null;
  sooner: { change: string; detail: string; facts: Record<string, unknown> }[];
  sooner_known: boolean;
  nearest: { node: string; lacks: unknown } | null;
}

export interface Whatif {
  starts: { task_id: string; nodes: string[]; new?: boolean }[];
  delays: { task_id: string; before: string; after: string | null; seconds: number | null }[];
  stops: { task_id: string; node: string; reason: string }[];
  waits: { task_id: string; expected_start: string | null; position: number | null; blockers: Blocker[] }[];
  rejected: Problem | null;
  at: string;
}

export interface PoolUse {
  quota: number;
  used: number;
  available: number;
  borrowed: number;
  waiting: number;
}

export interface QuotaEffect {
  online: PoolUse;
  batch: PoolUse;
  starts: string[];
  waits: string[];
  drains: string[];
  stops: string[];
  rejected: Problem | null;
}

export interface TenantUse {
  tenant_id: string;
  gpus_used: number;
  gpu_memory_mb: number;
  running: number;
  waiting: number;
  gpus_kept: number;
  gpu_hours_this_month: number;
  recent_gpu_hours: number;
  share: number;
}

export interface Tenant {
  id: string;
  max_gpus: number | null;
  guaranteed_gpus: number;
  weight: number;
  max_running: number | null;
  max_waiting: number | null;
  max_priority: number | null;
  pools: string[];
  gpu_hours_per_month: number | null;
  use: TenantUse;
}

export interface Node {
  id: string;
  status: string;
  address: string;
  agent_version: string;
  gpus: number;
  gpus_free: number;
  gpu_models: string[];
  cpus: number;
  ram_mb: number;
  tasks: string[];
  labels: Record<string, string>;
  registered_at: string | null;
  offline_since: string | null;
  unconfirmed_since: string | null;
  draining: boolean;
  drain_reason: string;
}

export interface Gpu {
  id: string;
  node: string;
  index: number;
  model: string;
  memory_total_mb: number;
  memory_used_mb: number | null;
  memory_foreign_mb: number;
  memory_reserved_mb: number;
  memory_usable_mb: number;
  utilization_percent: number | null;
  temperature_c: number | null;
  power_w: number | null;
  status: string;
  fault: string;
  health: {
    state: string;
    since: string | null;
    cause: string;
    evidence: string;
    remark: string;
    quarantines: number;
    good_runs: number;
    needs_person: boolean;
  };
  tasks: string[];
  loaded_models: string[];
}

export interface Alert {
  id: string;
  rule: string;
  subject: string;
  state: "pending" | "firing" | "resolved";
  severity: "critical" | "warning" | "info";
  summary: string;
  facts: Record<string, unknown>;
  pending_since: string;
  firing_since: string | null;
  resolved_at: string | null;
  flaps: number;
  acknowledged_at: string | null;
  comment: string;
  silenced_until: string | null;
}

export interface AlertList {
  total: number;
  pending: number;
  firing: number;
  resolved: number;
  dropped: number;
  alerts: Alert[];
}

export interface Silence {
  id: string;
  rule: string;
  subject: string | null;
  created_at: string;
  until: string;
  comment: string;
}
