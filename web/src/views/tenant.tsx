// One tenant: what it may use, what it uses, and its tasks.
import { useEffect } from "preact/hooks";
import { get } from "../api";
import { board, onTasks } from "../board/stream";
import { called, number, percent } from "../format";
import { duration, t } from "../i18n";
import { may } from "../me";
import type { Task, TaskPage, Tenant } from "../types";
import { useAsked, useThrottled } from "../ui/asked";
import { Empty, Meter, Page, ProblemBox, Skeleton, State, TaskLink } from "../ui/parts";
import { timeOf } from "../tasks/words";
import { limitsOf } from "./tenants";

const MAX_TASKS = 20;

export function TenantView({ id }: { id: string }) {
  const asked = useAsked<Tenant>(`tenant ${id}`, (signal) => get(`/api/v1/tenants/${encodeURIComponent(id)}`, {}, signal), 5_000);
  const tasks = useAsked<TaskPage>(`tasks of ${id}`, (signal) => get("/api/v1/tasks", { tenant: id, limit: MAX_TASKS }, signal));
  const refresh = useThrottled(() => {
    asked.refresh();
    tasks.refresh();
  }, 1_500);
  useEffect(() => onTasks(refresh), [id]);
  const found = tasks.data?.tasks ?? [];
  return (
    <Page
      title={id}
      testid="tenant"
      actions={
        <>
          <a class="button" href={`/tasks?tenant=${encodeURIComponent(id)}`}>
            {t("tenant.allTasks")}
          </a>
          {may("token.read") ? (
            <a class="button" href="/tokens">
              {t("nav.tokens")}
            </a>
          ) : null}
        </>
      }
    >
      <div class="stack">
        <section class="card">
          {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
          {asked.data ? <Facts tenant={asked.data} /> : asked.problem ? null : <Skeleton lines={4} height={24} />}
        </section>
        <section class="card" aria-label={t("tenant.newest")}>
          <header>
            <h2>{t("tenant.newest")}</h2>
          </header>
          {tasks.problem ? <ProblemBox problem={tasks.problem} retry={tasks.refresh} /> : null}
          {tasks.data && !found.length ? <Empty title={t("tasks.empty")} /> : null}
          {!tasks.data && !tasks.problem ? <Skeleton lines={5} height={24} /> : null}
          {found.length ? <Table tasks={found} /> : null}
        </section>
      </div>
    </Page>
  );
}

function Facts({ tenant }: { tenant: Tenant }) {
  const most = tenant.max_gpus ?? board.value?.quota.total_gpus ?? 0;
  const use = `${number(tenant.use.gpus_used, 1)} / ${number(most)}`;
  return (
    <dl class="facts">
      <dt>{t("tenants.use")}</dt>
      <dd>
        <Meter value={tenant.use.gpus_used} most={most} label={use} />
        <small>{use}</small>
      </dd>
      <dt>{t("tenants.share")}</dt>
      <dd>{percent(tenant.use.share)}</dd>
      <dt>{t("tenants.tasks")}</dt>
      <dd>
        {number(tenant.use.running)} / {number(tenant.use.waiting)}
      </dd>
      <dt>{t("tenants.hours")}</dt>
      <dd>
        {number(tenant.use.gpu_hours_this_month, 1)}
        {tenant.gpu_hours_per_month ? ` / ${number(tenant.gpu_hours_per_month)}` : ""}
      </dd>
      <dt>{t("tenants.limit")}</dt>
      <dd>{limitsOf(tenant)}</dd>
    </dl>
  );
}

function Table({ tasks }: { tasks: Task[] }) {
  return (
    <div class="table-wrap">
      <table data-testid="tenant-tasks">
        <thead>
          <tr>
            <th>{t("tasks.id")}</th>
            <th>{t("tasks.name")}</th>
            <th>{t("tasks.status")}</th>
            <th class="num">{t("tenant.time")}</th>
          </tr>
        </thead>
        <tbody>
          {tasks.map((task) => {
            const ms = timeOf(task);
            return (
              <tr key={task.task_id}>
                <td>
                  <TaskLink id={task.task_id} />
                </td>
                <td>{called(task)}</td>
                <td>
                  <State group="status" value={task.status} />
                </td>
                <td class="num">{ms === null ? "–" : duration(ms)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
