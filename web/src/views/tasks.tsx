// All tasks, a page at a time: the server searches and pages, so a hundred thousand are as fast as ten.
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../api";
import { board, onTasks } from "../board/stream";
import { number, taskNumber } from "../format";
import { t, word } from "../i18n";
import { route, setQuery } from "../router";
import { Table } from "../tasks/table";
import type { TaskPage, TaskStatus } from "../types";
import { useAsked, useThrottled } from "../ui/asked";
import { CopyLine, Empty, Page, ProblemBox, Segments, Skeleton } from "../ui/parts";

const PER_PAGE = 50;
const STATUSES: TaskStatus[] = ["pending", "running", "success", "failed", "cancelled"];
const FILTERS = ["status", "tenant", "pool", "q", "node", "gpu", "array"] as const;

export function Tasks() {
  const { query } = route.value;
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name)]));
  const cursor = query.get("cursor");
  const sort = query.get("sort");
  const key = JSON.stringify([filters, cursor, sort]);
  // Only the newest first: the scheduler folds an array where it meets its last task.
  const asked = useAsked<TaskPage>(key, (signal) => get("/api/v1/tasks", { ...filters, sort, cursor, limit: PER_PAGE, fold: filters.array || sort ? null : true }, signal));
  const page = asked.data;
  const refresh = useThrottled(asked.refresh, 1_500);
  const last = useRef<TaskPage | null>(null);
  if (page) last.current = page;
  const shown = page ?? last.current; // while the next page comes, the one before stays

  useEffect(
    () =>
      onTasks((numbers, more) => {
        const here = last.current?.tasks ?? [];
        if (more || !cursor || here.some((task) => task.array || numbers.includes(taskNumber(task.task_id)))) refresh();
      }),
    [cursor],
  );

  const filtered = FILTERS.some((name) => query.get(name));
  return (
    <Page
      title={t("tasks.title")}
      testid="tasks"
      actions={<span class="muted">{shown ? t(shown.total_is_exact === false ? "tasks.totalAtLeast" : "tasks.total", { n: number(shown.total) }) : ""}</span>}
    >
      <section class="card">
        <Filters />
        {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
        {!shown ? asked.problem ? null : <Skeleton lines={12} height={24} /> : null}
        {shown && shown.tasks.length > 0 ? <Table tasks={shown.tasks} onDone={asked.refresh} /> : null}
        {shown && shown.tasks.length === 0 ? <Nothing filtered={filtered} /> : null}
        {shown && (cursor || shown.next_cursor) ? (
          <div class="pager row">
            <button type="button" disabled={!cursor} onClick={() => setQuery({ cursor: null })}>
              {t("tasks.first")}
            </button>
            <button type="button" disabled={!shown.next_cursor} onClick={() => setQuery({ cursor: shown.next_cursor })} data-testid="next-page">
              {t("tasks.next")}
            </button>
          </div>
        ) : null}
      </section>
    </Page>
  );
}

function Nothing({ filtered }: { filtered: boolean }) {
  if (filtered) {
    return (
      <Empty title={t("tasks.noMatch")}>
        <a href="/tasks">{t("tasks.clearFilters")}</a>
      </Empty>
    );
  }
  return (
    <Empty title={t("tasks.empty")}>
      <p>{t("tasks.emptyHow")}</p>
      <CopyLine text="dgpu submit -G 1 -- python train.py" />
    </Empty>
  );
}

function Filters() {
  const { query } = route.value;
  const [text, setText] = useState(query.get("q") ?? "");
  const inAddress = query.get("q") ?? "";
  const sent = useRef(inAddress);
  // Only an address that came from elsewhere replaces the text: what was typed meanwhile, and a space at its end, stays.
  useEffect(() => {
    if (inAddress === sent.current) return;
    sent.current = inAddress;
    setText(inAddress);
  }, [inAddress]);
  useEffect(() => {
    if (text.trim() === inAddress) return;
    const timer = window.setTimeout(() => {
      sent.current = text.trim();
      setQuery({ q: text.trim(), cursor: null }, { replace: true });
    }, 250);
    return () => window.clearTimeout(timer);
  }, [text]);
  const tenants = board.value?.tenants ?? [];
  const change = (name: string) => (event: Event) => setQuery({ [name]: (event.currentTarget as HTMLSelectElement).value, cursor: null });
  const chosen = (query.get("status") ?? "") as TaskStatus | "";
  const tenant = query.get("tenant") ?? "";
  return (
    <div class="filters">
      <Segments<TaskStatus | "">
        label={t("tasks.status")}
        value={chosen}
        testid="status-filter"
        options={[["", t("common.all")], ...STATUSES.map((status): [TaskStatus, string] => [status, word("status", status)])]}
        onChange={(status) => setQuery({ status, cursor: null })}
      />
      <input type="search" class="filter" value={text} maxLength={100} placeholder={t("tasks.search")} aria-label={t("tasks.search")} data-testid="task-search" onInput={(event) => setText(event.currentTarget.value)} />
      <select aria-label={t("tasks.pool")} value={query.get("pool") ?? ""} onChange={change("pool")}>
        <option value="">{`${t("tasks.pool")}: ${t("common.all")}`}</option>
        <option value="online">{word("pool", "online")}</option>
        <option value="batch">{word("pool", "batch")}</option>
      </select>
      <select aria-label={t("tasks.tenant")} value={tenant} onChange={change("tenant")}>
        <option value="">{`${t("tasks.tenant")}: ${t("common.all")}`}</option>
        {tenant && !tenants.some((each) => each.id === tenant) ? <option value={tenant}>{tenant}</option> : null}
        {tenants.map((each) => (
          <option key={each.id} value={each.id}>
            {each.id}
          </option>
        ))}
      </select>
      <select aria-label={t("tasks.sort")} value={query.get("sort") ?? ""} onChange={change("sort")}>
        <option value="">{t("tasks.newest")}</option>
        <option value="oldest">{t("tasks.oldest")}</option>
      </select>
      {["node", "gpu", "array"].map((name) =>
        query.get(name) ? (
          <button key={name} type="button" onClick={() => setQuery({ [name]: null, cursor: null })}>
            {query.get(name)} ✕
          </button>
        ) : null,
      )}
    </div>
  );
}
