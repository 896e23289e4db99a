// One task: what it is, why it waits or what became of it, and what it says.
import { useEffect, useState } from "preact/hooks";
import { ApiError, del, get, post } from "../api";
import { onTasks } from "../board/stream";
import { command, megabytes, number, parseTime, taskNumber } from "../format";
import { GpuChart } from "../heatmap/gpu";
import { duration, endText, t, told, word } from "../i18n";
import { may } from "../me";
import { now } from "../now";
import { go } from "../router";
import { Files } from "../task/files";
import { Life } from "../task/life";
import { Log } from "../task/log";
import { Used } from "../task/used";
import { Waits } from "../task/waits";
import { ArrayCard } from "../tasks/card";
import type { PortLink, Retried, Task, TaskEvents } from "../types";
import { useAsked, useThrottled } from "../ui/asked";
import { askBefore } from "../ui/dialog";
import { Facts, nodeAddress, Page, ProblemBox, Skeleton, State, TaskLink, Time } from "../ui/parts";
import { complain, say } from "../ui/toast";

const MAX_GPUS_DRAWN = 8;
const MARGIN_MS = 60_000;

export function TaskView({ id }: { id: string }) {
  const address = `/api/v1/tasks/${encodeURIComponent(id)}`;
  const task = useAsked<Task>(id, (signal) => get(address, {}, signal), 15_000);
  const events = useAsked<TaskEvents>(`${id} events`, (signal) => get(`${address}/events`, {}, signal));
  const refresh = useThrottled(() => {
    task.refresh();
    events.refresh();
  }, 1_000);
  useEffect(() => onTasks((numbers, more) => (more || numbers.includes(taskNumber(task.data?.task_id ?? id))) && refresh()), [id, task.data?.task_id]);

  if (task.problem && !task.data) {
    return (
      <Page title={id} testid="task">
        <ProblemBox problem={task.problem} retry={task.refresh} />
      </Page>
    );
  }
  const known = task.data;
  if (!known) {
    return (
      <Page title={id} testid="task">
        <div class="stack">
          <Skeleton height={90} />
          <Skeleton height={160} />
          <Skeleton height={280} />
        </div>
      </Page>
    );
  }
  return (
    <Page title={<Title task={known} />} testid="task" actions={<Actions task={known} refresh={refresh} />}>
      <div class="stack">
        {known.error ? (
          <div class="problem" data-testid="task-error">
            {endText(known)}
          </div>
        ) : null}
        {known.array ? <ArrayCard task={known} refresh={refresh} /> : null}
        {known.status === "pending" ? <Waits task={known} /> : null}
        <Life task={known} events={events.data?.events ?? null} />
        <div class="halves">
          <Log key={`${known.attempt}`} task={known} />
          <Details task={known} />
        </div>
        <Used task={known} />
        {known.entrypoint ? null : <Files task={known} />}
        <RunCharts task={known} />
        <Attempts task={known} />
      </div>
    </Page>
  );
}

function Title({ task }: { task: Task }) {
  return (
    <span class="row task-title">
      <span>{task.array ? task.element_id : task.task_id}</span>
      {task.name ? <span class="muted">{task.name}</span> : null}
      <span class="chip" data-testid="task-status" data-status={task.status}>
        <State group="status" value={task.status} {...(task.cancelling ? { note: t("task.cancelling") } : task.held ? { note: t("task.held") } : {})} />
      </span>
    </span>
  );
}

function Actions({ task, refresh }: { task: Task; refresh: () => void }) {
  const live = task.status === "pending" || task.status === "running";
  const address = `/api/v1/tasks/${task.element_id ?? task.task_id}`;
  const order = (name: string) => void post(`${address}/${name}`).then(refresh, complain);
  const cancel = () =>
    askBefore({
      title: t("task.cancelAsk", { id: task.task_id }),
      text: task.status === "running" ? t("task.cancelRunning") : t("task.cancelWaiting"),
      action: t("task.cancelIt", { id: task.task_id }),
      danger: true,
      run: async () => {
        await del(address);
        refresh();
      },
    });
  return (
    <>
      {task.status === "pending" && may("task.change") ? (
        <button type="button" onClick={() => order(task.held ? "release" : "hold")}>
          {task.held ? t("task.release") : t("task.hold")}
        </button>
      ) : null}
      {live && may("task.change") ? (
        <button type="button" class="danger" onClick={cancel} disabled={task.cancelling} data-testid="cancel">
          {t("task.cancel")}
        </button>
      ) : null}
      {!live && may("task.submit") ? (
        <button type="button" onClick={() => void retry(task)} data-testid="retry">
          {t("task.retry")}
        </button>
      ) : null}
      {may("task.submit") ? (
        <a class="button" href={`/submit?like=${task.task_id}`} data-testid="retry-edit">
          {t("task.retryEdit")}
        </a>
      ) : null}
    </>
  );
}

async function retry(task: Task, body: Record<string, unknown> = {}): Promise<void> {
  try {
    const made = await post<Retried>(`/api/v1/tasks/${task.element_id ?? task.task_id}/retry`, body);
    say(t("submit.done", { id: made.task_id }));
    go(`/tasks/${made.task_id}`);
  } catch (error) {
    if (error instanceof ApiError && error.problem.status === 410 && !body.without_env) {
      askBefore({ title: t("task.retry"), text: t("task.retryWithout"), action: t("task.retry"), run: () => retry(task, { without_env: true }) });
    } else complain(error);
  }
}

function Details({ task }: { task: Task }) {
  const asked = [
    task.nodes > 1 ? t("task.perNode", { gpus: task.gpu_count, nodes: task.nodes }) : `${number(task.gpu_share < 1 && !task.shared ? task.gpu_share : task.gpu_count, 3)} GPU`,
    task.gpu_model?.join(" | "),
    task.gpu_memory_mb ? t("task.memory", { memory: megabytes(task.gpu_memory_mb) }) : "",
    task.shared ? t("task.shared") : "",
    task.cpus ? `${number(task.cpus, 2)} CPU` : "",
    task.ram_mb ? `${megabytes(task.ram_mb)} RAM` : "",
    ...(task.constraints ?? []),
  ].filter(Boolean);
  const rows: [string, preact.ComponentChildren][] = [
    [t("task.command"), task.allocation ? t("task.allocation") : task.entrypoint ? null : <code>{command(task.command)}</code>],
    [t("task.function"), task.entrypoint ? <code>{task.entrypoint}</code> : null],
    [t("task.progress"), task.progress ? <Progress fraction={task.progress.fraction} text={task.progress.text ?? ""} /> : null],
    [t("task.worker"), task.worker ? <TaskLink id={task.worker} /> : task.worker_of ? t("task.isWorker", { app: task.worker_of.slice(0, 8) }) : null],
    [t("tasks.tenant"), <a href={`/tenants/${encodeURIComponent(task.tenant_id)}`}>{task.tenant_id}</a>],
    [t("tasks.pool"), `${word("pool", task.pool)} · ${t("task.priority")} ${word("level", String(task.priority))}`],
    [t("task.asked"), asked.join(" · ")],
    [t("task.node"), task.allocated_nodes?.length || task.node ? <Placed task={task} /> : null],
    [t("task.created"), <Time at={task.created_at} />],
    [t("task.started"), task.started_at ? <Time at={task.started_at} /> : null],
    [t("task.finished"), task.finished_at ? <Time at={task.finished_at} /> : null],
    [t("task.result"), task.finished_at && !task.error ? (task.exit_code === null ? endText(task) : t("tasks.exit", { code: task.exit_code })) : null],
    [t("task.timeout"), task.timeout_seconds ? duration(task.timeout_seconds * 1_000) : null],
    [t("task.workdir"), task.workdir ? <code>{task.workdir}</code> : null],
    [t("task.env"), task.env?.length ? <span title={t("task.envNote")}>{task.env.join(", ")}</span> : null],
    [t("task.labels"), Object.entries(task.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(", ") || null],
    [t("task.ports"), task.ports?.length && task.status === "running" && may("task.enter") ? <Ports task={task} /> : null],
    [t("task.array"), task.array_id ? <span>{t("task.arrayOf", { index: task.array_index ?? 0, count: task.array_count ?? 0, id: task.array_id })}</span> : null],
    [t("task.after"), task.after?.length ? task.after.map((each) => <TaskLink key={each.task_id} id={each.task_id} />) : null],
  ];
  return (
    <section class="card" aria-label={t("task.details")}>
      <header>
        <h2>{t("task.details")}</h2>
      </header>
      <Facts rows={rows} />
    </section>
  );
}

/** How far a function says it is. */
function Progress({ fraction, text }: { fraction: number; text: string }) {
  return (
    <span class="row" data-testid="progress">
      <progress value={fraction} max={1} aria-label={t("task.progress")} />
      {`${number(fraction * 100, 0)} % ${text}`.trim()}
    </span>
  );
}

/** Each opens on a host of its own: a page of a task must not share the origin of this page. */
function Ports({ task }: { task: Task }) {
  const open = (port: number) =>
    void post<PortLink>(`/api/v1/tasks/${task.element_id ?? task.task_id}/links`, { port }).then((link) => window.open(link.url, "_blank", "noopener"), complain);
  return (
    <span class="row">
      {(task.ports ?? []).map((port) => (
        <button key={port} type="button" class="small" onClick={() => open(port)} title={t("task.openPort", { port })} data-testid="open-port">
          {t("task.port", { port })}
        </button>
      ))}
    </span>
  );
}

function Placed({ task }: { task: Task }) {
  const nodes = task.allocated_nodes?.length ? task.allocated_nodes : [task.node ?? ""];
  return (
    <span class="row">
      {nodes.map((node) => (
        <a key={node} href={nodeAddress(node)}>
          {node}
        </a>
      ))}
    </span>
  );
}

function RunCharts({ task }: { task: Task }) {
  const [shown, setShown] = useState(0);
  const latest = task.attempts?.at(-1);
  const gpus = (task.allocated_gpus?.length ? task.allocated_gpus : (latest?.gpus ?? [])).slice(0, MAX_GPUS_DRAWN);
  const from = latest?.started_at ?? task.started_at;
  const gpu = gpus[Math.min(shown, gpus.length - 1)];
  if (!from || !gpu) return null;
  const until = latest?.ended_at ?? task.finished_at ?? undefined;
  return (
    <section class="card" aria-label={t("task.gpus")}>
      <header>
        <h2>{t("task.gpus")}</h2>
        <span class="gap" />
        {gpus.length > 1 ? (
          <div class="segments">
            {gpus.map((each, place) => (
              <button key={each} type="button" aria-pressed={each === gpu} title={task.allocated_gpu_names?.[place] ?? each} onClick={() => setShown(place)}>
                {place}
              </button>
            ))}
          </div>
        ) : null}
      </header>
      <GpuChart id={gpu} since={shifted(from, -MARGIN_MS)} {...(until ? { until: shifted(until, MARGIN_MS) } : {})} />
    </section>
  );
}

/** A little before and after, so that a short run is not a single point. */
function shifted(at: string, byMs: number): string {
  return new Date((parseTime(at) ?? 0) + byMs).toISOString();
}

function Attempts({ task }: { task: Task }) {
  const attempts = task.attempts ?? [];
  if (attempts.length < 2) return null;
  return (
    <section class="card" aria-label={t("task.attempts")}>
      <header>
        <h2>{t("task.attempts")}</h2>
      </header>
      <div class="table-wrap">
        <table data-testid="attempts">
          <thead>
            <tr>
              <th class="num">{t("task.attempt")}</th>
              <th>{t("task.node")}</th>
              <th>{t("task.started")}</th>
              <th class="num">{t("task.ran")}</th>
              <th>{t("task.result")}</th>
            </tr>
          </thead>
          <tbody>
            {attempts.toReversed().map((each) => (
              <tr key={each.attempt}>
                <td class="num">{each.attempt}</td>
                <td>{each.node ? <a href={nodeAddress(each.node)}>{each.node}</a> : "–"}</td>
                <td>
                  <Time at={each.started_at ?? each.placed_at} />
                </td>
                <td class="num">{each.started_at ? duration((parseTime(each.ended_at) ?? now.value) - (parseTime(each.started_at) ?? 0)) : "–"}</td>
                <td>{each.reason ? told("ended", each.reason, { ...each }, each.error || each.reason) : each.exit_code === null ? "" : t("tasks.exit", { code: each.exit_code })}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
