// Why a task waits: every blocker, its place, when it is expected to start and what would start it now.
import { get } from "../api";
import { clock, exact, megabytes, number, parseTime } from "../format";
import { blockerText, duration, language, t, told } from "../i18n";
import { now } from "../now";
import type { ExpectedStart, Task, Reservation, Why } from "../types";
import { useAsked } from "../ui/asked";
import { nodeAddress, ProblemBox, Skeleton, TaskLink, Time } from "../ui/parts";

const MAX_AHEAD = 8;

export function Waits({ task }: { task: Task }) {
  const why = useAsked<Why>(`${task.task_id} ${task.held} ${task.priority_value}`, (signal) => get(`/api/v1/tasks/${task.task_id}/why`, {}, signal), 4_000);
  return (
    <section class="card waits" aria-label={t("task.waits")} data-testid="why">
      <header>
        <h2>{t("task.waits")}</h2>
        {why.data?.position ? <span class="muted">{t("task.position", { n: why.data.position })}</span> : null}
      </header>
      {why.problem ? <ProblemBox problem={why.problem} retry={why.refresh} /> : null}
      {why.data ? <Content why={why.data} /> : why.problem ? null : <Skeleton lines={3} />}
    </section>
  );
}

/** The same for a time in the past, from the journal. */
export function Waited({ task, at }: { task: Task; at: number }) {
  const query = { at: new Date(at).toISOString() };
  const why = useAsked<Why>(`${task.task_id} ${at}`, (signal) => get(`/api/v1/tasks/${task.task_id}/why`, query, signal));
  return (
    <div class="waits" aria-live="polite" data-testid="waited">
      <header>
        <h2>{t("task.waited", { time: exact(at, language.value) })}</h2>
        {why.data?.position ? <span class="muted">{t("task.position", { n: why.data.position })}</span> : null}
      </header>
      {why.problem ? <ProblemBox problem={why.problem} retry={why.refresh} /> : null}
      {why.data ? <Content why={why.data} /> : why.problem ? null : <Skeleton lines={3} />}
    </div>
  );
}

function Content({ why }: { why: Why }) {
  return (
    <>
      {why.blockers.length ? null : <p class="lead">{t("task.nextPass")}</p>}
      <div class="thirds">
        <div>
          <h3>{t("task.blockers")}</h3>
          <ul class="bullets" data-testid="blockers">
            {why.blockers.map((blocker) => (
              <li key={blocker.code + blocker.detail}>
                {blockerText(blocker)}
              </li>
            ))}
          </ul>
          {why.nearest && lacking(why.nearest.lacks) ? (
            <p class="muted">
              <a href={nodeAddress(why.nearest.node)}>{t("task.nearest", { node: why.nearest.node, lacks: lacking(why.nearest.lacks) })}</a>
            </p>
          ) : null}
          {why.ahead_total ? (
            <p class="ids muted">
              {t("task.ahead", { n: why.ahead_total })}
              {why.ahead.slice(0, MAX_AHEAD).map((id) => (
                <TaskLink key={id} id={id} />
              ))}
              {why.ahead_total > MAX_AHEAD ? "…" : ""}
            </p>
          ) : null}
        </div>
        {why.at ? null : (
          <div>
            <h3>{t("task.expected")}</h3>
            {why.expected_start ? <Expected start={why.expected_start} /> : <p class="muted">{t("task.startUnknown")}</p>}
            {why.reservation ? <Reserved held={why.reservation} /> : null}
          </div>
        )}
        <div>
          <h3>{t(why.at ? "task.soonerThen" : "task.sooner")}</h3>
          {why.sooner.length ? (
            <ul class="bullets" data-testid="sooner">
              {why.sooner.map((change) => (
                <li key={change.change + change.detail}>{told("change", change.change, change.facts, change.detail)}</li>
              ))}
            </ul>
          ) : (
            <p class="muted">{t(why.sooner_known ? "task.soonerNone" : "task.soonerUnknown")}</p>
          )}
        </div>
      </div>
    </>
  );
}

function Expected({ start }: { start: ExpectedStart }) {
  const p50 = parseTime(start.p50) ?? 0;
  const p90 = parseTime(start.p90) ?? 0;
  return (
    <div data-testid="expected-start">
      <p class="expected">
        <Time at={p50} />
        <span class="muted"> {clock(p50, p50 - now.value < 600_000)}</span>
      </p>
      <p class="muted">
        p90 <Time at={p90} /> ({clock(p90, p90 - now.value < 600_000)})
      </p>
      <p class="muted">{start.median_error_seconds === null ? t("task.noPastError") : t("task.pastError", { error: duration(start.median_error_seconds * 1_000) })}</p>
    </div>
  );
}

function lacking(lacks: Record<string, number>): string {
  const shown: Record<string, (value: number) => string> = {
    gpus: (value) => t("lacks.gpus", { n: value }),
    cpus_milli: (value) => t("lacks.cpus", { n: number(value / 1_000, 2) }),
    ram_mb: (value) => t("lacks.ram", { memory: megabytes(value) }),
  };
  return Object.entries(lacks).map(([name, value]) => shown[name]?.(value) ?? `${name} ${value}`).join(", ");
}

function Reserved({ held }: { held: Reservation }) {
  const at = parseTime(held.at);
  const where = held.nodes.slice(0, 4).join(", ") + (held.nodes.length > 4 ? " …" : "");
  const words = { n: held.gpus.length, nodes: where, time: at === null ? "" : clock(at, at - now.value < 600_000) };
  return (
    <p class="muted" data-testid="reservation">
      {at === null ? t("task.reservedSometime", words) : t("task.reserved", words)}
    </p>
  );
}
