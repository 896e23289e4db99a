// Who uses the cluster: the users of the last day.
import { get } from "../api";
import { number } from "../format";
import { t } from "../i18n";
import type { Usage } from "../types";
import { useAsked } from "../ui/asked";
import { Meter, ProblemBox, Skeleton } from "../ui/parts";

const MAX_SHOWN = 8;

export function Users() {
  const asked = useAsked<Usage>("users", (signal) => get("/api/v1/history/usage", { since: "24h", by: "user" }, signal), 60_000);
  const rows = asked.data?.rows ?? [];
  const most = Math.max(0, ...rows.map((row) => row.gpu_hours));
  return (
    <section class="card" aria-label={t("cluster.users")} data-testid="users">
      <header>
        <h2>{t("cluster.users")}</h2>
      </header>
      {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
      {!asked.data && !asked.problem ? <Skeleton lines={3} /> : null}
      {asked.data && !rows.length ? <p class="muted">{t("cluster.noUse")}</p> : null}
      {rows.length ? (
        <div class="table-wrap">
          <table>
            <thead>
              <tr>
                <th>{t("cluster.user")}</th>
                <th class="num">{t("cluster.tasksOf")}</th>
                <th class="num">{t("cluster.gpuHours")}</th>
                <td class="wide-only use" />
              </tr>
            </thead>
            <tbody>
              {rows.slice(0, MAX_SHOWN).map((row) => (
                <tr key={row.user}>
                  <td>{row.user || <span class="muted">{t("cluster.noUser")}</span>}</td>
                  <td class="num">
                    {number(row.running)} / {number(row.waiting)}
                  </td>
                  <td class="num">{number(row.gpu_hours, 2)}</td>
                  <td class="wide-only use">
                    <Meter value={row.gpu_hours} most={most} label={number(row.gpu_hours, 2)} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      {rows.length > MAX_SHOWN ? (
        <p class="muted small-print">
          <a href="/tenants?by=user">{t("common.more", { n: number(rows.length - MAX_SHOWN) })}</a>
        </p>
      ) : null}
    </section>
  );
}
