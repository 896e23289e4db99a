// An array: how far it is, and its tasks, those that failed first.
import { get } from "../api";
import { number } from "../format";
import { duration, t, word } from "../i18n";
import type { ArrayProgress, Task, TaskPage } from "../types";
import { useAsked } from "../ui/asked";
import { ProblemBox, Skeleton, State } from "../ui/parts";
import { addressOf, idOf, timeOf, whereOf } from "./words";

const STATUSES = ["failed", "running", "pending", "cancelled", "success"] as const;
const MAX_SHOWN = 20;
const AGAIN_MS = 5_000;

/** One bar with a part for each status, and the same in words. */
export function Progress({ array }: { array: ArrayProgress }) {
  const parts = STATUSES.filter((status) => array[status] > 0);
  const words = parts.map((status) => `${number(array[status])} ${word("status", status)}`).join(" · ");
  return (
    <span class="progress">
      <span class="progress-bar" aria-hidden="true">
        {parts.map((status) => (
          <i key={status} class={status} style={{ flexGrow: array[status] }} />
        ))}
      </span>
      <span>{words}</span>
    </span>
  );
}

export function Elements({ id, count, failed }: { id: string; count: number; failed: number }) {
  const asked = useAsked<Task[]>(`array ${id}`, (signal) => tasksOf(id, failed, signal), AGAIN_MS);
  if (asked.problem && !asked.data) return <ProblemBox problem={asked.problem} retry={asked.refresh} />;
  if (!asked.data) return <Skeleton lines={3} />;
  return (
    <>
      <table class="elements" data-testid={`elements-${id}`}>
        <tbody>
          {asked.data.map((task) => (
            <tr key={task.task_id}>
              <td class="nowrap">
                <a href={addressOf(task)}>{idOf(task)}</a>
              </td>
              <td>
                <State group="status" value={task.status} />
              </td>
              <td class="clip where" title={whereOf(task)}>
                {whereOf(task)}
              </td>
              <td class="num">{duration(timeOf(task))}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {count > asked.data.length ? (
        <p class="small-print">
          <a href={`/tasks?array=${id}`}>{t("array.all", { n: number(count) })}</a>
        </p>
      ) : null}
    </>
  );
}

/** Those that failed, then those that run, then the first of the others. */
async function tasksOf(id: string, failed: number, signal: AbortSignal): Promise<Task[]> {
  const ask = (status: string | null) => get<TaskPage>("/api/v1/tasks", { array: id, status, sort: "oldest", limit: MAX_SHOWN }, signal).then((page) => page.tasks);
  const found = [...(failed ? await ask("failed") : []), ...(await ask("running")), ...(await ask(null))];
  return [...new Map(found.map((task) => [task.task_id, task])).values()].slice(0, MAX_SHOWN);
}
