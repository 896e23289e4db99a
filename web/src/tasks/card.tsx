// The array of a task: its progress, what failed, and orders for all of it.
import { del, post } from "../api";
import { number } from "../format";
import { t, told } from "../i18n";
import { may } from "../me";
import { go } from "../router";
import type { Retried, Task } from "../types";
import { askBefore } from "../ui/dialog";
import { complain, say } from "../ui/toast";
import { Progress } from "./array";
import { liveOf } from "./words";

/** The address of an array is that of its first task: the page shows both. */
export function ArrayCard({ task, refresh }: { task: Task; refresh: () => void }) {
  const { array, array_id: id } = task;
  if (!array || !id) return null;
  return (
    <section class="card" aria-label={t("array.title", { id })} data-testid="array">
      <header>
        <h2>{t("array.title", { id })}</h2>
        <Progress array={array} />
        <span class="gap" />
        <a href={`/tasks?array=${id}`}>{t("array.all", { n: number(array.count) })}</a>
        <Orders id={id} live={liveOf(task)} failed={array.failed} refresh={refresh} />
      </header>
      {array.failures.length ? (
        <p class="ids">
          <span class="muted">{t("array.failures")}:</span>
          {array.failures.map((each) => (
            <a key={each.task_id} href={`/tasks/${id}_${each.index}`} title={told("ended", each.reason, { ...each }, each.reason)}>
              {`${id}_${each.index}`}
            </a>
          ))}
        </p>
      ) : null}
    </section>
  );
}

function Orders({ id, live, failed, refresh }: { id: string; live: number; failed: number; refresh: () => void }) {
  const cancel = () =>
    askBefore({
      title: t("tasks.cancelTitle", { n: number(live) }),
      text: t("tasks.cancelAsk", { n: live }),
      action: t("tasks.cancel", { n: number(live) }),
      danger: true,
      count: live,
      run: async () => {
        await del(`/api/v1/tasks/${id}`);
        refresh();
      },
    });
  const retry = () =>
    void post<Retried>(`/api/v1/tasks/${id}/retry`, { failed: true }).then((made) => {
      say(t("submit.done", { id: made.task_id }));
      go(`/tasks/${made.task_id}`);
    }, complain);
  return (
    <>
      {live && may("task.change") ? (
        <button type="button" class="danger" onClick={cancel} data-testid="cancel-array">
          {t("tasks.cancel", { n: number(live) })}
        </button>
      ) : null}
      {failed && may("task.submit") ? (
        <button type="button" onClick={retry} data-testid="retry-failed">
          {t("array.retryFailed", { n: number(failed) })}
        </button>
      ) : null}
    </>
  );
}
