// What the form holds and the task it stands for. Pure.
import { command, seconds } from "../format";
import type { Task } from "../types";

export interface Form {
  command: string;
  name: string;
  tenant: string;
  pool: string;
  priority: string;
  gpus: string;
  memory: string;
  model: string;
  shared: boolean;
  nodes: string;
  timeout: string;
  retries: string;
  workdir: string;
  env: string;
  array: string;
  after: string;
}

export const BLANK: Form = {
  command: "",
  name: "",
  tenant: "",
  pool: "",
  priority: "",
  gpus: "1",
  memory: "",
  model: "",
  shared: false,
  nodes: "1",
  timeout: "",
  retries: "",
  workdir: "",
  env: "",
  array: "",
  after: "",
};

/** Which field of the form a path of the API speaks of. */
export const FIELD_OF: Record<string, keyof Form> = {
  command: "command",
  name: "name",
  tenant_id: "tenant",
  pool: "pool",
  priority: "priority",
  gpu_count: "gpus",
  gpu_memory_mb: "memory",
  gpu_model: "model",
  shared: "shared",
  nodes: "nodes",
  timeout_seconds: "timeout",
  max_retries: "retries",
  workdir: "workdir",
  env: "env",
  array: "array",
  after: "after",
};

export type Mistake = { field: keyof Form; kind: "line" | "time"; value: string };

/** The body of a submit, or what in the form cannot be one. What the server checks is left to the server. */
export function taskOf(form: Form): { body: Record<string, unknown>; mistakes: Mistake[] } {
  const mistakes: Mistake[] = [];
  const body: Record<string, unknown> = { command: form.command.trim() };
  const text = (name: string, value: string) => {
    if (value.trim()) body[name] = value.trim();
  };
  text("name", form.name);
  text("tenant_id", form.tenant);
  text("pool", form.pool);
  text("gpu_model", form.model);
  text("workdir", form.workdir);
  text("array", form.array);
  const figure = (name: string, value: string) => {
    if (value.trim()) body[name] = /^\d+$/.test(value.trim()) ? Number(value) : value.trim();
  };
  figure("priority", form.priority);
  figure("gpu_count", form.gpus);
  figure("gpu_memory_mb", form.memory);
  figure("max_retries", form.retries);
  if (form.nodes.trim() && form.nodes.trim() !== "1") figure("nodes", form.nodes);
  if (form.shared) body.shared = true;
  if (form.timeout.trim()) {
    const limit = seconds(form.timeout);
    if (limit === null) mistakes.push({ field: "timeout", kind: "time", value: form.timeout });
    else body.timeout_seconds = limit;
  }
  const after = form.after.split(/[\s,]+/).filter(Boolean);
  if (after.length) body.after = after;
  const env = environment(form.env, mistakes);
  if (Object.keys(env).length) body.env = env;
  return { body, mistakes };
}

function environment(text: string, mistakes: Mistake[]): Record<string, string> {
  const env: Record<string, string> = {};
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const cut = line.indexOf("=");
    if (cut < 1) mistakes.push({ field: "env", kind: "line", value: line.slice(0, 40) });
    else env[line.slice(0, cut).trim()] = line.slice(cut + 1);
  }
  return env;
}

/** The form of a task like this one. Values of its environment are not known here. */
export function formOf(task: Task): Form {
  return {
    ...BLANK,
    command: command(task.command),
    name: task.name,
    tenant: task.tenant_id,
    pool: task.pool,
    priority: String(task.priority),
    gpus: String(task.gpu_count),
    memory: task.gpu_memory_mb ? String(task.gpu_memory_mb) : "",
    model: task.gpu_model?.join("|") ?? "",
    shared: task.shared,
    nodes: String(task.nodes),
    timeout: task.timeout_seconds ? String(task.timeout_seconds) : "",
    retries: String(task.max_retries),
    workdir: task.own_workdir ? "" : task.workdir,
    env: (task.env ?? []).map((name) => `${name}=`).join("\n"),
  };
}
