// Who changed what, and what was refused: the audit log, newest first, a page at a time.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, path } from "../api";
import { exact, number, parseTime } from "../format";
import { language, t, word } from "../i18n";
import { route, setQuery } from "../router";
import type { AuditEntry, AuditPage } from "../types";
import { useAsked } from "../ui/asked";
import { Empty, Page, ProblemBox, Segments, Skeleton, TaskLink } from "../ui/parts";

const FILTERS = ["result", "user", "action", "tenant"] as const;
const PER_PAGE = 100;
const TYPED_MS = 400;

type Filter = (typeof FILTERS)[number];

export function Audit() {
  const { query } = route.value;
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name)]));
  const cursor = query.get("cursor");
  const key = JSON.stringify([filters, cursor]);
  const asked = useAsked<AuditPage>(`audit ${key}`, (signal) => get("/api/v1/audit", { ...filters, cursor, limit: PER_PAGE }, signal), cursor ? 0 : 10_000);
  const found = asked.data;
  return (
    <Page
      title={t("audit.title")}
      testid="audit"
      actions={
        <a class="button" href={path("/api/v1/audit/export", filters)} download="audit.jsonl" data-testid="audit-export">
          {t("audit.export")}
        </a>
      }
    >
      <section class="card">
        <div class="filters">
          <Segments<string>
            label={t("audit.result")}
            value={query.get("result") ?? ""}
            testid="audit-result"
            options={[
              ["", t("common.all")],
              ["done", t("audit.done")],
              ["refused", t("audit.refused")],
              ["failed", t("audit.failed")],
            ]}
            onChange={(result) => setQuery({ result: result || null, cursor: null })}
          />
          <Field name="user" />
          <Field name="action" />
          <Field name="tenant" />
        </div>
        {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
        {!found && !asked.problem ? <Skeleton lines={6} height={24} /> : null}
        {found && found.entries.length === 0 ? <Empty title={t("audit.none")} /> : null}
        {found?.entries.length ? <Table entries={found.entries} /> : null}
        {found?.history_behind ? <p class="muted small-print">{t("audit.behind", { n: number(found.history_behind) })}</p> : null}
        <div class="row">
          {cursor ? (
            <button type="button" onClick={() => setQuery({ cursor: null })}>
              {t("audit.newest")}
            </button>
          ) : null}
          {found?.next_cursor ? (
            <button type="button" onClick={() => setQuery({ cursor: found.next_cursor })} data-testid="audit-older">
              {t("audit.older")}
            </button>
          ) : null}
        </div>
      </section>
    </Page>
  );
}

/** A text of the address; typing asks the server only after a pause. */
function Field({ name }: { name: Filter }) {
  const given = route.value.query.get(name) ?? "";
  const [text, setText] = useState(given);
  const timer = useRef(0);
  useEffect(() => setText(given), [given]);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  const typed = (next: string) => {
    setText(next);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => setQuery({ [name]: next.trim() || null, cursor: null }, { replace: true }), TYPED_MS);
  };
  const label = t(`audit.${name}`);
  return <input type="search" class="filter" value={text} maxLength={100} placeholder={label} aria-label={label} data-testid={`audit-${name}`} onInput={(event) => typed(event.currentTarget.value)} />;
}

function Table({ entries }: { entries: AuditEntry[] }) {
  return (
    <div class="table-wrap">
      <table data-testid="audit-table">
        <thead>
          <tr>
            <th>{t("audit.time")}</th>
            <th>{t("audit.user")}</th>
            <th>{t("audit.origin")}</th>
            <th>{t("audit.action")}</th>
            <th>{t("audit.subject")}</th>
            <th>{t("audit.tenant")}</th>
            <th>{t("audit.result")}</th>
            <th class="num">{t("audit.times")}</th>
          </tr>
        </thead>
        <tbody>
          {entries.map((entry) => (
            <Row key={`${entry.at} ${entry.id}`} entry={entry} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ entry }: { entry: AuditEntry }) {
  const more = entry.tasks > 1 ? t("audit.tasks", { n: number(entry.tasks) }) : "";
  return (
    <tr data-result={entry.result}>
      <td class="nowrap">
        <time dateTime={entry.at}>{exact(parseTime(entry.at) ?? 0, language.value)}</time>
      </td>
      <td title={[entry.role, entry.source, entry.token_id].filter(Boolean).join(" · ")}>
        {entry.user ?? <span class="muted">{entry.role ?? t("audit.unknown")}</span>}
      </td>
      <td>{entry.origin ?? "–"}</td>
      <td title={entry.call}>{entry.action}</td>
      <td>
        {entry.subject?.startsWith("task-") ? <TaskLink id={entry.subject} /> : (entry.subject ?? "")} <span class="muted">{more}</span>
      </td>
      <td>{entry.tenant_id ?? ""}</td>
      <td title={entry.request_id ? t("problem.request", { id: entry.request_id }) : ""}>
        <span class="state">
          <i class={`dot ${{ done: "success", refused: "warning" }[entry.result] ?? "failed"}`} aria-hidden="true" />
          {word("audit", entry.result)}
          {entry.code ? <span class="muted">{entry.code}</span> : null}
        </span>
      </td>
      <td class="num">{entry.count > 1 ? `× ${number(entry.count)}` : ""}</td>
    </tr>
  );
}
