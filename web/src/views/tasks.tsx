// All tasks, a page at a time: the server searches and pages, so a hundred thousand are as fast as ten.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, post } from "../api";
import { board, onTasks } from "../board/stream";
import { called, megabytes, number, parseTime, taskNumber } from "../format";
import { duration, endText, t, waitingText, word } from "../i18n";
import { may } from "../me";
import { now } from "../now";
import { go, route, setQuery } from "../router";
import type { Cancelled, Task, TaskPage, TaskStatus } from "../types";
import { useAsked, useThrottled } from "../ui/asked";
import { askBefore } from "../ui/dialog";
import { CopyLine, Empty, Page, ProblemBox, Segments, Skeleton, State, Time } from "../ui/parts";
import { useRows } from "../ui/rows";
import { complain, say } from "../ui/toast";

const PER_PAGE = 50;
const STATUSES: TaskStatus[] = ["pending", "running", "success", "failed", "cancelled"];
const FILTERS = ["status", "tenant", "pool", "q", "node", "gpu"] as const;

export function Tasks() {
  const { query } = route.value;
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name)]));
  const cursor = query.get("cursor");
  const sort = query.get("sort");
  const key = JSON.stringify([filters, cursor, sort]);
  const asked = useAsked<TaskPage>(key, (signal) => get("/api/v1/tasks", { ...filters, sort, cursor, limit: PER_PAGE }, signal));
  const page = asked.data;
  const refresh = useThrottled(asked.refresh, 1_500);
  const last = useRef<TaskPage | null>(null);
  if (page) last.current = page;
  const shown = page ?? last.current; // while the next page comes, the one before stays

  useEffect(
    () =>
      onTasks((numbers, more) => {
        const here = new Set(last.current?.tasks.map((task) => taskNumber(task.task_id)));
        if (more || !cursor || numbers.some((each) => here.has(each))) refresh();
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
      {["node", "gpu"].map((name) =>
        query.get(name) ? (
          <button key={name} type="button" onClick={() => setQuery({ [name]: null, cursor: null })}>
            {query.get(name)} ✕
          </button>
        ) : null,
      )}
    </div>
  );
}

function Table({ tasks, onDone }: { tasks: Task[]; onDone: () => void }) {
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const body = useRef<HTMLTableSectionElement>(null);
  const toggle = (id: string) =>
    setSelected((old) => {
      const next = new Set(old);
      if (!next.delete(id)) next.add(id);
      return next;
    });
  const at = useRows(tasks, { open: (task) => go(`/tasks/${task.task_id}`), select: (task) => toggle(task.task_id) });
  useEffect(() => body.current?.children[at]?.scrollIntoView({ block: "nearest" }), [at]);
  const here = useMemo(() => tasks.filter((task) => selected.has(task.task_id)), [tasks, selected]);
  const all = here.length === tasks.length;
  return (
    <>
      {here.length ? <Chosen tasks={here} clear={() => setSelected(new Set())} onDone={onDone} /> : null}
      <div class="table-wrap">
        <table class="tasks" data-testid="task-table">
          <thead>
            <tr>
              <th>
                <input type="checkbox" aria-label={t("tasks.selectAll")} checked={all} onChange={() => setSelected(new Set(all ? [] : tasks.map((task) => task.task_id)))} />
              </th>
              <th>{t("tasks.id")}</th>
              <th class="wide-only">{t("tasks.name")}</th>
              <th>{t("tasks.status")}</th>
              <th class="where wide-only">{t("tasks.where")}</th>
              <th class="num">{t("tasks.gpus")}</th>
              <th class="wide-only">{t("tasks.tenant")}</th>
              <th class="wide-only">{t("tasks.pool")}</th>
              <th class="num wide-only">{t("tasks.priority")}</th>
              <th class="wide-only">{t("tasks.age")}</th>
              <th class="num">{t("tasks.time")}</th>
            </tr>
          </thead>
          <tbody ref={body}>
            {tasks.map((task, row) => (
              <Row key={task.task_id} task={task} at={row === at} selected={selected.has(task.task_id)} toggle={() => toggle(task.task_id)} />
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Row({ task, at, selected, toggle }: { task: Task; at: boolean; selected: boolean; toggle: () => void }) {
  const open = (event: MouseEvent) => {
    if (!(event.target as Element).closest("a, input")) go(`/tasks/${task.task_id}`);
  };
  return (
    <tr class={at ? "open at" : "open"} onClick={open} data-testid={`row-${task.task_id}`} aria-selected={selected}>
      <td>
        <input type="checkbox" aria-label={t("tasks.select", { id: task.task_id })} checked={selected} onChange={toggle} />
      </td>
      <td class="nowrap">
        <a href={`/tasks/${task.task_id}`}>{task.task_id}</a>
        <small class="phone-only muted phone-name">{called(task)}</small>
      </td>
      <td class="clip wide-only" title={called(task)}>
        {called(task)}
      </td>
      <td>
        <State group="status" value={task.status} {...(task.held ? { note: t("task.held") } : task.cancelling ? { note: t("task.cancelling") } : {})} />
        <small class="phone-only muted phone-where">{whereOf(task)}</small>
      </td>
      <td class="clip where wide-only" title={whereOf(task)}>
        {whereOf(task)}
      </td>
      <td class="num">{gpusOf(task)}</td>
      <td class="wide-only">{task.tenant_id}</td>
      <td class="wide-only">{word("pool", task.pool)}</td>
      <td class="num wide-only">{task.priority}</td>
      <td class="nowrap wide-only">
        <Time at={task.created_at} />
      </td>
      <td class="num">{duration(timeOf(task))}</td>
    </tr>
  );
}

function gpusOf(task: Task): string {
  if (task.nodes > 1) return `${task.nodes} × ${task.gpu_count}`;
  if (task.shared && task.gpu_memory_mb) return megabytes(task.gpu_memory_mb); // its part of a card is its memory
  return number(task.gpu_share < 1 ? task.gpu_share : task.gpu_count, 3);
}

function whereOf(task: Task): string {
  if (task.status === "pending") return waitingText(task);
  if (task.status === "running") return waitingText(task) || (task.allocated_nodes?.length > 1 ? task.allocated_nodes.join(", ") : (task.node ?? ""));
  if (task.status === "failed") return endText(task) || t("tasks.exit", { code: task.exit_code ?? "?" });
  return task.node ?? "";
}

/** How long it waits, runs, or ran. */
export function timeOf(task: Task): number | null {
  const from = parseTime(task.started_at) ?? (task.status === "pending" ? parseTime(task.created_at) : null);
  if (from === null) return null;
  return Math.max(0, (parseTime(task.finished_at) ?? now.value) - from);
}

function Chosen({ tasks, clear, onDone }: { tasks: Task[]; clear: () => void; onDone: () => void }) {
  const live = tasks.filter((task) => task.status === "pending" || task.status === "running");
  const over = tasks.filter((task) => !live.includes(task));
  const cancel = () =>
    askBefore({
      title: t("tasks.cancelTitle", { n: live.length }),
      text: t("tasks.cancelAsk", { n: live.length }),
      action: t("tasks.cancel", { n: live.length }),
      danger: true,
      count: live.length,
      run: async () => {
        const told = await post<Cancelled>("/api/v1/tasks/cancel", { task_ids: live.map((task) => task.element_id ?? task.task_id) });
        say(t("tasks.cancelled", { n: told.cancelled }));
        clear();
        onDone();
      },
    });
  const retry = async () => {
    let sent = 0;
    for (const task of over) {
      try {
        await post(`/api/v1/tasks/${task.element_id ?? task.task_id}/retry`);
        sent++;
      } catch (error) {
        complain(error);
      }
    }
    if (sent) say(t("tasks.retried", { n: sent }));
    clear();
    onDone();
  };
  return (
    <div class="chosen row" role="toolbar" aria-label={t("tasks.selected", { n: tasks.length })} data-testid="chosen">
      <b>{t("tasks.selected", { n: tasks.length })}</b>
      {may("task.change") ? (
        <button type="button" class="danger" disabled={!live.length} onClick={cancel}>
          {t("tasks.cancel", { n: live.length })}
        </button>
      ) : null}
      {may("task.submit") ? (
        <button type="button" disabled={!over.length} onClick={() => void retry()}>
          {t("tasks.retry", { n: over.length })}
        </button>
      ) : null}
      <button type="button" class="plain" onClick={clear}>
        {t("tasks.clear")}
      </button>
    </div>
  );
}
