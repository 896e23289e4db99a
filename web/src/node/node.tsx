// One machine: its cards, its last hours, and what was the matter with it.
import { useEffect } from "preact/hooks";
import { get, post } from "../api";
import { onTasks } from "../board/stream";
import { megabytes, number } from "../format";
import { t, word } from "../i18n";
import { may } from "../me";
import type { Gpu, GpuList, Node, NodeHealth } from "../types";
import { useAsked, useThrottled } from "../ui/asked";
import { askBefore } from "../ui/dialog";
import { factsText } from "../ui/facts";
import { Page, ProblemBox, Skeleton, State, TaskLink, Time } from "../ui/parts";
import { ReadingCharts, type Readings } from "../ui/readings";
import { NodeOrders, NodeState } from "./orders";

export function NodeView({ id }: { id: string }) {
  const name = encodeURIComponent(id);
  const node = useAsked<Node>(id, (signal) => get(`/api/v1/nodes/${name}`, {}, signal), 5_000);
  const gpus = useAsked<GpuList>(`${id} gpus`, (signal) => get("/api/v1/gpus", { node: id }, signal), 10_000);
  const refresh = useThrottled(() => {
    node.refresh();
    gpus.refresh();
  }, 1_500);
  useEffect(() => onTasks(refresh), [id]);
  const title = (
    <span class="row">
      <a href="/nodes">{t("nodes.title")}</a> <span class="muted">/</span> {id}
    </span>
  );
  if (node.problem && !node.data) {
    return (
      <Page title={title} testid="node">
        <ProblemBox problem={node.problem} retry={node.refresh} />
      </Page>
    );
  }
  const known = node.data;
  return (
    <Page title={title} testid="node" actions={known ? <NodeOrders node={known} refresh={refresh} /> : null}>
      {known ? (
        <div class="stack">
          <Facts node={known} />
          <Cards gpus={gpus.data?.gpus ?? []} refresh={refresh} />
          <History id={id} />
          <HealthHistory id={id} />
        </div>
      ) : (
        <Skeleton height={240} />
      )}
    </Page>
  );
}

function Facts({ node }: { node: Node }) {
  const labels = Object.entries(node.labels).map(([name, value]) => `${name}=${value}`);
  const rows: [string, preact.ComponentChildren][] = [
    [t("nodes.state"), <NodeState node={node} />],
    [t("nodes.gpus"), `${t("nodes.free", { free: node.gpus_free, all: node.gpus })} · ${node.gpu_models.join(", ")}`],
    [t("nodes.cpus"), [node.cpus ? number(node.cpus) : "", node.ram_mb ? megabytes(node.ram_mb) : ""].filter(Boolean).join(" · ") || null],
    [t("nodes.address"), node.address || null],
    [t("nodes.agent"), node.agent_version || null],
    [t("nodes.enforced"), node.enforced.join(", ") || [t("nodes.enforcedNothing"), node.not_isolated].filter(Boolean).join(": ")],
    [t("nodes.since"), <Time at={node.registered_at} />],
    [t("nodes.labels"), labels.join(", ") || null],
  ];
  return (
    <section class="card">
      <dl class="facts">
        {rows
          .filter(([, value]) => value !== null)
          .map(([name, value]) => (
            <>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </>
          ))}
      </dl>
    </section>
  );
}

function Cards({ gpus, refresh }: { gpus: Gpu[]; refresh: () => void }) {
  const recover = (gpu: Gpu) =>
    askBefore({
      title: t("gpu.recover"),
      text: `${t("gpu.title", { index: gpu.index, node: gpu.node })}: ${gpu.health.cause || gpu.fault}`,
      action: t("gpu.recover"),
      input: t("nodes.reason"),
      run: async (reason) => {
        await post(`/api/v1/gpus/${encodeURIComponent(gpu.id)}/recover`, reason ? { reason } : {});
        refresh();
      },
    });
  if (!gpus.length) return null;
  return (
    <section class="card table-wrap">
      <table data-testid="node-gpus">
        <thead>
          <tr>
            <th class="num">GPU</th>
            <th>{t("gpu.state")}</th>
            <th>{t("gpu.health")}</th>
            <th class="num">{t("gpu.util")}</th>
            <th class="num">{t("gpu.memory")}</th>
            <th class="num">{t("gpu.memReserved")}</th>
            <th class="num">{t("gpu.memForeign")}</th>
            <th class="num">{t("gpu.temp")}</th>
            <th>{t("gpu.models")}</th>
            <th>{t("gpu.tasks")}</th>
          </tr>
        </thead>
        <tbody>
          {gpus.map((gpu) => (
            <tr key={gpu.id}>
              <td class="num" title={gpu.id}>
                {gpu.index}
              </td>
              <td>
                <State group="gpu" value={gpu.status} />
              </td>
              <td>
                {word("health", gpu.health.state)} <small class="muted">{gpu.health.remark || gpu.health.cause}</small>
                {gpu.health.needs_person && may("cluster.change") ? (
                  <button type="button" onClick={() => recover(gpu)}>
                    {t("gpu.recover")}
                  </button>
                ) : null}
              </td>
              <td class="num">{gpu.utilization_percent === null ? "–" : `${gpu.utilization_percent} %`}</td>
              <td class="num">
                {megabytes(gpu.memory_used_mb)} <span class="muted">/ {megabytes(gpu.memory_total_mb)}</span>
              </td>
              <td class="num">{megabytes(gpu.memory_reserved_mb)}</td>
              <td class="num">{megabytes(gpu.memory_foreign_mb)}</td>
              <td class="num">{gpu.temperature_c === null ? "–" : `${gpu.temperature_c} °C`}</td>
              <td>{gpu.loaded_models.join(", ")}</td>
              <td>
                <span class="row">
                  {gpu.tasks.map((id) => (
                    <TaskLink key={id} id={id} />
                  ))}
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function History({ id }: { id: string }) {
  const asked = useAsked<Readings>(`${id} history`, (signal) => get(`/api/v1/history/nodes/${encodeURIComponent(id)}`, { since: "6h" }, signal), 30_000);
  const told = asked.data;
  return (
    <section class="card" aria-label={t("nodes.history")}>
      <header>
        <h2>{t("nodes.history")}</h2>
      </header>
      {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
      {!told && !asked.problem ? <Skeleton height={140} /> : null}
      {told ? (
        <div class="charts two">
          <ReadingCharts told={told} height={130} />
        </div>
      ) : null}
    </section>
  );
}

function HealthHistory({ id }: { id: string }) {
  const asked = useAsked<NodeHealth>(`${id} health`, (signal) => get(`/api/v1/history/nodes/${encodeURIComponent(id)}/health`, { since: "30d", limit: 200 }, signal), 30_000);
  const events = asked.data?.events ?? [];
  return (
    <section class="card" aria-label={t("nodes.health")} data-testid="health-history">
      <header>
        <h2>{t("nodes.health")}</h2>
      </header>
      {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
      {asked.data && !events.length ? <p class="muted">{t("nodes.healthNone")}</p> : null}
      <ol class="events">
        {events.map((event, at) => (
          <li key={`${event.index}.${at}`}>
            <Time at={event.at} />
            <i class={`dot ${event.severity}`} role="img" aria-label={word("severity", event.severity)} />
            <b>{word("event", event.type)}</b>
            <span class="muted">{factsText(event.facts, ["node"])}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
