// Several schedulers: which one leads, how far the others are, and how the engine of their journal is.
import { get } from "../api";
import { bytes } from "../format";
import { brief, t, word } from "../i18n";
import { addressOf, isAlone, standing } from "../standing";
import type { EngineMember, Scheduler, SchedulerList } from "../types";
import { useAsked } from "../ui/asked";

const LOOK_MS = 5_000;

export function Schedulers() {
  const told = standing.value;
  return told && !isAlone(told) ? <Card /> : null;
}

function Card() {
  const asked = useAsked<SchedulerList>("schedulers", (signal) => get("/api/v1/schedulers", {}, signal), LOOK_MS);
  const known = asked.data;
  if (!known) return null;
  return (
    <section class="card" aria-label={t("schedulers.title")} data-testid="schedulers">
      <header>
        <h2>{t("schedulers.title")}</h2>
        {known.members.length ? <Light good={!known.engine} text={engineText(known)} /> : null}
      </header>
      <div class="table-wrap">
        <table data-testid="scheduler-table">
          <thead>
            <tr>
              <th>{t("schedulers.scheduler")}</th>
              <th>{t("schedulers.role")}</th>
              <th class="num">{t("schedulers.lag")}</th>
              <th class="num">{t("schedulers.epoch")}</th>
              <th>{t("schedulers.version")}</th>
              <th class="num">{t("schedulers.seen")}</th>
              <th>{t("schedulers.trouble")}</th>
            </tr>
          </thead>
          <tbody>
            {known.schedulers.map((each) => (
              <SchedulerRow key={each.url} each={each} />
            ))}
          </tbody>
        </table>
      </div>
      <Members members={known.members} />
    </section>
  );
}

function SchedulerRow({ each }: { each: Scheduler }) {
  const url = addressOf(each.url);
  return (
    <tr data-testid={`scheduler-${each.name}`}>
      <td>
        {url && !each.me ? <a href={url}>{each.name}</a> : each.name}
        {each.me ? <small class="muted"> {t("schedulers.me")}</small> : null}
      </td>
      <td>
        <Light good={each.healthy} text={word("role", each.role)} />
      </td>
      <td class="num">{each.lag_ms === null ? "–" : brief(each.lag_ms)}</td>
      <td class="num">{each.epoch}</td>
      <td class="nowrap">{each.version}</td>
      <td class="num">{each.me ? "–" : brief(each.last_seen_seconds * 1_000)}</td>
      <td>{each.trouble || "–"}</td>
    </tr>
  );
}

function Members({ members }: { members: EngineMember[] }) {
  if (!members.length) return null;
  return (
    <div class="table-wrap">
      <table data-testid="member-table">
        <thead>
          <tr>
            <th>{t("schedulers.member")}</th>
            <th>{t("schedulers.state")}</th>
            <th class="num">{t("schedulers.data")}</th>
            <th>{t("schedulers.version")}</th>
            <th>{t("schedulers.trouble")}</th>
          </tr>
        </thead>
        <tbody>
          {members.map((each) => (
            <tr key={each.address}>
              <td>{each.address}</td>
              <td>
                <Light good={each.healthy} text={word("member", each.state)} />
              </td>
              <td class="num">{each.version ? t("schedulers.of", { used: bytes(each.db_bytes), quota: bytes(each.quota_bytes) }) : "–"}</td>
              <td class="nowrap">{each.version || "–"}</td>
              <td>{each.trouble || "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Light({ good, text }: { good: boolean; text: string }) {
  return (
    <span class="state">
      <i class={`dot ${good ? "ready" : "lost"}`} aria-hidden="true" />
      {text}
    </span>
  );
}

function engineText(known: SchedulerList): string {
  if (known.engine) return known.engine;
  if (known.members_may_stop === null) return "";
  return t("schedulers.mayStop", { n: known.members_may_stop });
}
