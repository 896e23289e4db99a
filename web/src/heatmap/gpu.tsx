// One GPU: as a tip at the pointer, and as a panel with its last hour.
import { get } from "../api";
import type { GpuCell } from "../board/board";
import { megabytes, number } from "../format";
import { t, word } from "../i18n";
import { useAsked } from "../ui/asked";
import { nodeAddress, Skeleton, State, TaskLink } from "../ui/parts";
import { ReadingCharts, type Readings } from "../ui/readings";

export function GpuTip({ gpu, x, y }: { gpu: GpuCell; x: number; y: number }) {
  const left = x + 300 > window.innerWidth ? x - 286 : x + 14;
  const top = Math.min(y + 14, window.innerHeight - 190);
  return (
    <div class="tip" role="tooltip" style={{ left: `${left}px`, top: `${top}px` }} data-testid="gpu-tip">
      <strong>{t("gpu.title", { index: gpu.index, node: gpu.node })}</strong>
      <div class="row muted">
        <State group="gpu" value={gpu.status} note={missing(gpu)} />
        <span>{gpu.model}</span>
      </div>
      <div class="tip-facts">
        <span>{t("gpu.util")}</span> <b>{number(gpu.util)} %</b>
        <span>{t("gpu.temp")}</span> <b>{number(gpu.temp)} °C</b>
      </div>
      <MemoryBar gpu={gpu} />
      <div>
        {gpu.taskCount ? gpu.tasks.slice(0, 4).map((task) => `task-${task}`).join(", ") : <span class="muted">{t("gpu.noTasks")}</span>}
        {gpu.taskCount > 4 ? ` ${t("common.more", { n: gpu.taskCount - 4 })}` : ""}
      </div>
      {gpu.warm.length ? (
        <div class="muted">
          {t("gpu.models")}: {gpu.warm.join(", ")}
        </div>
      ) : null}
      {gpu.fault ? <div class="bad-text">{gpu.fault}</div> : null}
    </div>
  );
}

/** A busy GPU without readings: its use is not known. */
export function missing(gpu: GpuCell): string {
  return gpu.status === "busy" && gpu.util === null ? t("gpu.noTelemetry") : "";
}

/** What was promised, what is seen in use, and what others use: three facts that need not agree. */
export function MemoryBar({ gpu }: { gpu: GpuCell }) {
  const part = (mb: number | null) => `${gpu.memTotal ? Math.min(100, ((mb ?? 0) / gpu.memTotal) * 100) : 0}%`;
  const ours = gpu.memUsed === null ? null : Math.max(0, gpu.memUsed - gpu.memForeign);
  const rows: [string, number | null, string][] = [
    [t("gpu.memReserved"), gpu.memReserved, "reserved"],
    [t("gpu.memObserved"), ours, "observed"],
    [t("gpu.memForeign"), gpu.memForeign, "foreign"],
  ];
  return (
    <div class="memory">
      {rows.map(([label, mb, kind]) => (
        <div key={kind} class="memory-row">
          <span>{label}</span>
          <div class="meter" aria-hidden="true">
            <i class={kind} style={{ width: part(mb) }} />
          </div>
          <b>{megabytes(mb)}</b>
        </div>
      ))}
    </div>
  );
}

export function GpuPanel({ gpu, onClose }: { gpu: GpuCell; onClose: () => void }) {
  return (
    <aside class="card panel" aria-label={t("gpu.title", { index: gpu.index, node: gpu.node })} data-testid="gpu-panel">
      <header>
        <h2>{t("gpu.title", { index: gpu.index, node: gpu.node })}</h2>
        <span class="gap" />
        <button type="button" class="plain" onClick={onClose} aria-label={t("common.close")}>
          ✕
        </button>
      </header>
      <dl class="facts">
        <dt>{t("gpu.state")}</dt>
        <dd>
          <State group="gpu" value={gpu.status} note={missing(gpu)} />
        </dd>
        <dt>{t("gpu.model")}</dt>
        <dd>
          {gpu.model}, {megabytes(gpu.memTotal)}
        </dd>
        <dt>{t("gpu.node")}</dt>
        <dd>
          <a href={nodeAddress(gpu.node)}>{gpu.node}</a>
        </dd>
        <dt>{t("gpu.util")}</dt>
        <dd>
          {number(gpu.util)} % · {number(gpu.temp)} °C · {number(gpu.power)} W
        </dd>
        <dt>{t("gpu.health")}</dt>
        <dd>{word("health", gpu.health)}</dd>
        {gpu.fault ? <dt>{t("gpu.fault")}</dt> : null}
        {gpu.fault ? <dd class="bad-text">{gpu.fault}</dd> : null}
        <dt>{t("gpu.tasks")}</dt>
        <dd class="row">
          {gpu.tasks.map((task) => (
            <TaskLink key={task} id={task} />
          ))}
          {gpu.taskCount > gpu.tasks.length ? <a href={`/tasks?gpu=${encodeURIComponent(gpu.id)}`}>{t("common.more", { n: gpu.taskCount - gpu.tasks.length })}</a> : null}
          {gpu.taskCount ? null : <span class="muted">{t("gpu.noTasks")}</span>}
        </dd>
        {gpu.warm.length ? <dt>{t("gpu.models")}</dt> : null}
        {gpu.warm.length ? <dd>{gpu.warm.join(", ")}</dd> : null}
      </dl>
      <h3>{t("gpu.memory")}</h3>
      <MemoryBar gpu={gpu} />
      <h3>{t("gpu.history")}</h3>
      <GpuChart id={gpu.id} since="1h" />
      <code class="muted gpu-id">{gpu.id}</code>
    </aside>
  );
}

export function GpuChart({ id, since, until }: { id: string; since: string; until?: string }) {
  const asked = useAsked<Readings>(
    `${id} ${since} ${until ?? ""}`,
    (signal) => get(`/api/v1/history/gpus/${encodeURIComponent(id)}`, { since, until }, signal),
    until ? 0 : 10_000,
  );
  if (asked.problem) return <p class="muted">{t("common.noData")}</p>;
  if (!asked.data) return <Skeleton height={220} />;
  if (asked.data.utilization_percent.filter((value) => value !== null).length < 2) return <p class="muted">{t("common.noData")}</p>;
  return (
    <div class="stack">
      <ReadingCharts told={asked.data} height={100} />
    </div>
  );
}
