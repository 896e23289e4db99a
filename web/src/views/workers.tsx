// Workers: processes that keep a GPU and their models between calls of functions.
import { get } from "../api";
import { megabytes, number } from "../format";
import { duration, t } from "../i18n";
import { now } from "../now";
import { go } from "../router";
import type { Worker, WorkerList } from "../types";
import { useAsked } from "../ui/asked";
import { List, type Column } from "../ui/list";
import { nodeAddress, Page, State, TaskLink, Time } from "../ui/parts";
import { TenantNames } from "../ui/tenants";

export function Workers() {
  const asked = useAsked<WorkerList>("workers", (signal) => get("/api/v1/workers", {}, signal), 3_000);
  return (
    <Page title={t("workers.title")} testid="workers">
      <p class="muted page-note">{t("workers.what")}</p>
      <List
        asked={asked}
        rowsOf={(data) => data.workers}
        columns={columns()}
        id={(worker) => worker.task_id}
        testid="worker"
        open={(worker) => go(`/tasks/${worker.task_id}`)}
        empty={{ title: t("workers.empty"), how: t("workers.emptyHow"), command: "dgpu call hello:square 7 --json-args --wait" }}
      />
    </Page>
  );
}

function columns(): Column<Worker>[] {
  return [
    { head: t("workers.id"), cell: (worker) => <TaskLink id={worker.task_id} /> },
    { head: t("workers.status"), cell: (worker) => <Standing worker={worker} /> },
    { head: t("workers.gpus"), cell: (worker) => <Place worker={worker} /> },
    { head: t("workers.models"), cell: (worker) => <Models worker={worker} /> },
    { head: t("workers.queued"), cell: (worker) => number(worker.queued), kind: "num wide-only" },
    { head: t("workers.tenant"), cell: (worker) => <TenantNames names={[worker.tenant_id]} />, kind: "wide-only" },
  ];
}

function Standing({ worker }: { worker: Worker }) {
  return (
    <>
      <State group="worker" value={worker.status} />
      {worker.running ? (
        <small class="block">
          <TaskLink id={worker.running} />
        </small>
      ) : null}
      {worker.idle_since ? <small class="muted block">{t("workers.idle", { time: duration(now.value - Date.parse(worker.idle_since)) })}</small> : null}
      {worker.queued ? <small class="muted phone-only">{t("workers.waiting", { n: worker.queued })}</small> : null}
    </>
  );
}

function Place({ worker }: { worker: Worker }) {
  if (!worker.node) return <>–</>;
  return (
    <a href={nodeAddress(worker.node)} class="nowrap">
      {worker.node}
      {worker.gpus.length ? `:${worker.gpus.join(",")}` : ""}
    </a>
  );
}

function Models({ worker }: { worker: Worker }) {
  if (!worker.models.length) return <span class="muted">{t("workers.noModels")}</span>;
  return (
    <ul class="plain-list">
      {worker.models.map((model) => (
        <li key={model.name}>
          {model.name} <small class="muted">{[model.memory_mb ? megabytes(model.memory_mb) : "", model.loading ? t("workers.loading") : ""].filter(Boolean).join(" · ")}</small>
          {model.last_used_at ? (
            <small class="muted block">
              {t("workers.used")} <Time at={model.last_used_at} />
            </small>
          ) : null}
        </li>
      ))}
    </ul>
  );
}
