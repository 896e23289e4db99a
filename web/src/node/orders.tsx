// Taking a machine out of service, back into it, or giving it up: each is asked about first.
import type { ComponentChildren } from "preact";
import { get, post } from "../api";
import { parseTime } from "../format";
import { duration, problemText, t } from "../i18n";
import { may } from "../me";
import type { Node, Task, TaskPage, Whatif } from "../types";
import { useAsked } from "../ui/asked";
import { askBefore } from "../ui/dialog";
import { Skeleton, State, TaskLink, Time } from "../ui/parts";
import { say } from "../ui/toast";

const MAX_NAMED = 12;

export function NodeState({ node }: { node: Node }) {
  const value = node.offline_since ? "offline" : node.unconfirmed_since ? "unconfirmed" : node.draining ? (node.running ? "draining" : "drained") : node.status;
  return (
    <>
      <State group="node" value={value} />
      {node.offline_since ? (
        <small class="muted">
          {" "}
          <Time at={node.offline_since} />
        </small>
      ) : null}
      {node.unconfirmed_since ? (
        <small class="muted">
          {" "}
          {t("node.notHeard")} <Time at={node.unconfirmed_since} />
        </small>
      ) : null}
      {node.drain_reason ? <small class="muted"> {node.drain_reason}</small> : null}
    </>
  );
}

export function NodeOrders({ node, refresh }: { node: Node; refresh: () => void }) {
  const address = `/api/v1/nodes/${encodeURIComponent(node.id)}`;
  const resume = () =>
    askBefore({
      title: t("nodes.resumeAsk", { node: node.id }),
      text: t("nodes.resumeWhat"),
      action: `${t("nodes.resume")} ${node.id}`,
      run: async () => {
        await post(`${address}/resume`);
        say(t("nodes.resumed", { node: node.id }));
        refresh();
      },
    });
  const drain = () =>
    askBefore({
      title: t("nodes.drainAsk", { node: node.id }),
      text: t("nodes.drainWhat"),
      action: `${t("nodes.drain")} ${node.id}`,
      input: t("nodes.reason"),
      extra: (
        <>
          <StillRun node={node} />
          <DrainEffect id={node.id} />
        </>
      ),
      run: async (reason) => {
        await post(`${address}/drain`, reason ? { reason } : {});
        say(t("nodes.drained", { node: node.id }));
        refresh();
      },
    });
  const giveUp = () =>
    askBefore({
      title: t("nodes.lostAsk", { node: node.id }),
      text: t("nodes.lostWhat"),
      action: t("nodes.lost"),
      danger: true,
      input: t("nodes.reason"),
      run: async (reason) => {
        await post(`${address}/lost`, reason ? { reason } : {});
        refresh();
      },
    });
  if (!may("cluster.change")) return null;
  return (
    <span class="row orders">
      {node.offline_since && node.tasks.length ? (
        <button type="button" class="danger" onClick={giveUp}>
          {t("nodes.lost")}
        </button>
      ) : null}
      {node.draining ? (
        <button type="button" onClick={resume} data-testid={`resume-${node.id}`}>
          {t("nodes.resume")}
        </button>
      ) : (
        <button type="button" onClick={drain} data-testid={`drain-${node.id}`}>
          {t("nodes.drain")}
        </button>
      )}
    </span>
  );
}

/** The tasks that a drain waits for, and until when at most. */
function StillRun({ node }: { node: Node }) {
  const asked = useAsked<TaskPage>(`on ${node.id}`, (signal) => get("/api/v1/tasks", { node: node.id, status: "running", limit: MAX_NAMED }, signal));
  if (asked.problem) return <p class="muted">{problemText(asked.problem)}</p>;
  if (!asked.data) return <Skeleton />;
  const others = node.running - node.tasks.length;
  if (!node.running) return <p class="note">{t("nodes.empty")}</p>;
  return (
    <div class="note" data-testid="still-run">
      {node.tasks.length ? <p>{t("nodes.stillRun", { n: node.tasks.length })}</p> : null}
      <ul class="bullets">
        {asked.data.tasks.map((task) => (
          <li key={task.task_id}>
            <TaskLink id={task.task_id} /> {task.name} <span class="muted">{untilOf(task)}</span>
          </li>
        ))}
      </ul>
      {asked.data.total > asked.data.tasks.length ? <p class="muted">{t("common.more", { n: asked.data.total - asked.data.tasks.length })}</p> : null}
      {others > 0 ? <p class="muted">{t("nodes.othersRun", { n: others })}</p> : null}
    </div>
  );
}

function untilOf(task: Task): ComponentChildren {
  const started = parseTime(task.started_at);
  if (!task.timeout_seconds || started === null) return t("nodes.runsOpen");
  return (
    <>
      {t("nodes.runsUntil")} <Time at={started + task.timeout_seconds * 1_000} />
    </>
  );
}

/** What draining would do, told before it is done. */
function DrainEffect({ id }: { id: string }) {
  const asked = useAsked<Whatif>(`drain ${id}`, (signal) => post("/api/v1/whatif", { drain: id }, signal));
  if (asked.problem) return <p class="muted">{problemText(asked.problem)}</p>;
  if (!asked.data) return <Skeleton />;
  const delays = asked.data.delays;
  const longest = Math.max(0, ...delays.map((delay) => delay.seconds ?? 0));
  return (
    <p class="note" data-testid="drain-effect">
      {delays.length ? t("nodes.previewDelays", { n: delays.length }) : t("nodes.previewNone")}
      {longest ? ` (≤ ${duration(longest * 1_000)})` : ""}
    </p>
  );
}
