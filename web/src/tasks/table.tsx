// The table of tasks. An array is one row, which unfolds to its tasks.
import { useMemo, useState } from "preact/hooks";
import { post } from "../api";
import { called, number } from "../format";
import { duration, t, word } from "../i18n";
import { may } from "../me";
import { go } from "../router";
import type { Cancelled, Task } from "../types";
import { askBefore } from "../ui/dialog";
import { State, Time } from "../ui/parts";
import { useRows } from "../ui/rows";
import { complain, say } from "../ui/toast";
import { Elements, Progress } from "./array";
import { addressOf, gpusOf, idOf, isLive, liveOf, statusOf, timeOf, whereOf } from "./words";

export function Table({ tasks, onDone }: { tasks: Task[]; onDone: () => void }) {
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const toggle = (id: string) =>
    setSelected((old) => {
      const next = new Set(old);
      if (!next.delete(id)) next.add(id);
      return next;
    });
  const { at, body } = useRows(tasks, { open: (task) => go(addressOf(task)), select: (task) => toggle(task.task_id) });
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
              <Row key={task.array_id ?? task.task_id} task={task} at={row === at} selected={selected.has(task.task_id)} toggle={() => toggle(task.task_id)} />
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Row({ task, at, selected, toggle }: { task: Task; at: boolean; selected: boolean; toggle: () => void }) {
  const [unfolded, setUnfolded] = useState(false);
  const { array } = task;
  const id = idOf(task);
  const open = (event: MouseEvent) => {
    if (!(event.target as Element).closest("a, input, button")) go(addressOf(task));
  };
  const where = array ? <Progress array={array} /> : whereOf(task);
  return (
    <>
      <tr class={at ? "open at" : "open"} onClick={open} data-testid={`row-${id}`} aria-selected={selected}>
        <td>
          <input type="checkbox" aria-label={t("tasks.select", { id })} checked={selected} onChange={toggle} />
        </td>
        <td class="nowrap">
          <a href={addressOf(task)}>{id}</a>
          {array ? (
            <button type="button" class="plain unfold" aria-expanded={unfolded} aria-label={t("array.unfold", { id })} onClick={() => setUnfolded(!unfolded)} data-testid={`unfold-${id}`}>
              {unfolded ? "▾" : "▸"} {number(array.count)}
            </button>
          ) : null}
          <small class="phone-only muted phone-name">{called(task)}</small>
        </td>
        <td class="clip wide-only" title={called(task)}>
          {called(task)}
        </td>
        <td>
          <State group="status" value={statusOf(task)} {...(task.held ? { note: t("task.held") } : task.cancelling ? { note: t("task.cancelling") } : {})} />
          <small class="phone-only muted phone-where">{where}</small>
        </td>
        <td class="clip where wide-only" title={array ? undefined : whereOf(task)}>
          {where}
        </td>
        <td class="num">{gpusOf(task)}</td>
        <td class="wide-only">{task.tenant_id}</td>
        <td class="nowrap wide-only">{word("pool", task.pool)}</td>
        <td class="num wide-only" title={String(task.priority_value)}>{word("level", String(task.priority))}</td>
        <td class="nowrap wide-only">
          <Time at={task.created_at} />
        </td>
        <td class="num">{array ? "" : duration(timeOf(task))}</td>
      </tr>
      {unfolded && array ? (
        <tr class="inner">
          <td colSpan={11}>
            <Elements id={id} count={array.count} failed={array.failed} />
          </td>
        </tr>
      ) : null}
    </>
  );
}

function Chosen({ tasks, clear, onDone }: { tasks: Task[]; clear: () => void; onDone: () => void }) {
  const live = tasks.filter(isLive);
  const over = tasks.filter((task) => !isLive(task) || (task.array?.failed ?? 0) > 0);
  const count = live.reduce((sum, task) => sum + liveOf(task), 0);
  const cancel = () =>
    askBefore({
      title: t("tasks.cancelTitle", { n: count }),
      text: t("tasks.cancelAsk", { n: count }),
      action: t("tasks.cancel", { n: count }),
      danger: true,
      count,
      run: async () => {
        const told = await post<Cancelled>("/api/v1/tasks/cancel", { task_ids: live.map(idOf) });
        say(t("tasks.cancelled", { n: told.cancelled }));
        clear();
        onDone();
      },
    });
  const retry = async () => {
    let sent = 0;
    for (const task of over) {
      try {
        await post(`/api/v1/tasks/${idOf(task)}/retry`, task.array?.failed ? { failed: true } : {});
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
          {t("tasks.cancel", { n: count })}
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
