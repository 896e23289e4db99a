// Who uses how much of what they may.
import { get } from "../api";
import { board } from "../board/stream";
import { number, percent } from "../format";
import { duration, t, word } from "../i18n";
import { may } from "../me";
import { route, setQuery } from "../router";
import type { Tenant, TenantList, Usage } from "../types";
import { useAsked } from "../ui/asked";
import { CopyLine, Empty, Meter, Page, ProblemBox, Segments, Skeleton, Time } from "../ui/parts";

type By = "tenant" | "pool" | "user";

export function Tenants() {
  const asked = useAsked<TenantList>("tenants", (signal) => get("/api/v1/tenants", {}, signal), 5_000);
  return (
    <Page title={t("tenants.title")} testid="tenants">
      <div class="stack">
        <section class="card">
          {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
          {asked.data ? asked.data.tenants.length ? <Table tenants={asked.data.tenants} /> : <Nobody /> : asked.problem ? null : <Skeleton lines={5} height={34} />}
        </section>
        <Report />
      </div>
    </Page>
  );
}

function Nobody() {
  return (
    <Empty title={t("tenants.empty")}>
      {may("tenant.change") ? (
        <>
          <p>{t("tenants.emptyHow")}</p>
          <CopyLine text="dgpu tenant set vision --max-gpus 16" />
        </>
      ) : null}
    </Empty>
  );
}

function Table({ tenants }: { tenants: Tenant[] }) {
  const gpus = board.value?.quota.total_gpus ?? 0;
  const used = tenants.reduce((sum, tenant) => sum + tenant.use.recent_gpu_hours, 0);
  const ordered = tenants.toSorted((a, b) => b.use.gpus_used - a.use.gpus_used || a.id.localeCompare(b.id));
  return (
    <div class="table-wrap">
      <table data-testid="tenant-table">
        <thead>
          <tr>
            <th>{t("tasks.tenant")}</th>
            <th class="bar-column">{t("tenants.use")}</th>
            <th class="bar-column">{t("tenants.share")}</th>
            <th class="num">{t("tenants.tasks")}</th>
            <th class="num">{t("tenants.hours")}</th>
            <th class="wide-only">{t("tenants.limit")}</th>
          </tr>
        </thead>
        <tbody>
          {ordered.map((tenant) => {
            const most = tenant.max_gpus ?? gpus;
            const got = used > 0 ? tenant.use.recent_gpu_hours / used : 0;
            const use = `${number(tenant.use.gpus_used, 1)} / ${number(most)}`;
            const share = `${percent(tenant.use.share)} · ${t("tenants.shareGot", { got: percent(got) })}`;
            return (
              <tr key={tenant.id} data-testid={`tenant-${tenant.id}`}>
                <td>
                  <a href={`/tenants/${encodeURIComponent(tenant.id)}`}>{tenant.id}</a>
                </td>
                <td>
                  <Meter value={tenant.use.gpus_used} most={most} label={use} />
                  <small>{use}</small>
                </td>
                <td>
                  <div class="meter share" role="img" aria-label={share}>
                    <i style={{ width: `${Math.min(1, got) * 100}%` }} />
                    <b style={{ left: `${Math.min(1, tenant.use.share) * 100}%` }} />
                  </div>
                  <small>{share}</small>
                </td>
                <td class="num">
                  {number(tenant.use.running)} / {number(tenant.use.waiting)}
                </td>
                <td class="num">
                  {number(tenant.use.gpu_hours_this_month, 1)}
                  {tenant.gpu_hours_per_month ? <small class="muted"> / {number(tenant.gpu_hours_per_month)}</small> : null}
                </td>
                <td class="wide-only muted">{limitsOf(tenant)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

export function limitsOf(tenant: Tenant): string {
  const limits = [
    tenant.max_gpus === null ? "" : `${tenant.max_gpus} GPU`,
    tenant.guaranteed_gpus ? t("tenants.guaranteed", { n: tenant.guaranteed_gpus }) : "",
    tenant.weight === 1 ? "" : t("tenants.weight", { n: tenant.weight }),
    ...(tenant.pools.length < 2 ? tenant.pools.map((pool) => word("pool", pool)) : []),
  ].filter(Boolean);
  return limits.join(" · ") || t("tenants.none");
}

function Report() {
  const by = (route.value.query.get("by") ?? "tenant") as By;
  const asked = useAsked<Usage>(`usage ${by}`, (signal) => get("/api/v1/history/usage", { since: "30d", by }, signal), 30_000);
  const rows = asked.data?.rows ?? [];
  return (
    <section class="card" aria-label={t("tenants.report")}>
      <header>
        <h2>{t("tenants.report")}</h2>
        <span class="gap" />
        <Segments<By>
          label={t("tenants.report")}
          value={by}
          options={[
            ["tenant", t("tasks.tenant")],
            ["pool", t("tasks.pool")],
          ]}
          onChange={(next) => setQuery({ by: next === "tenant" ? null : next }, { replace: true })}
        />
      </header>
      {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
      {asked.data ? null : asked.problem ? null : <Skeleton lines={4} height={24} />}
      {asked.data && !rows.length ? <p class="muted">{t("common.noData")}</p> : null}
      {rows.length ? (
        <div class="table-wrap">
          <table data-testid="usage-table">
            <thead>
              <tr>
                <th>{by === "tenant" ? t("tasks.tenant") : t("tasks.pool")}</th>
                <th class="num">GPU h</th>
                <th class="num">{t("tenants.ended")}</th>
                <th class="num">{t("tenants.wait")}</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row[by] ?? ""}>
                  <td>{by === "pool" ? word("pool", row.pool ?? "") : (row[by] ?? "")}</td>
                  <td class="num">{number(row.gpu_hours, 2)}</td>
                  <td class="num">
                    {number(row.succeeded)} / {number(row.failed)} / {number(row.cancelled)}
                  </td>
                  <td class="num">{row.wait_mean_seconds === null ? "–" : duration(row.wait_mean_seconds * 1_000)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      {asked.data?.history_since ? (
        <p class="muted small-print">
          {t("tenants.usageSince", { time: "" }).replace(/[.。]$/, "")}
          <Time at={asked.data.history_since} />
        </p>
      ) : null}
    </section>
  );
}
