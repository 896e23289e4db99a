// A task's life on one line of time, and the events behind it.
import { useState } from "preact/hooks";
import { exact } from "../format";
import { duration, language, t, word } from "../i18n";
import { now } from "../now";
import type { Task, TaskEvent } from "../types";
import { factsText } from "../ui/facts";
import { Time } from "../ui/parts";
import { spansOf, type Span } from "./spans";
import { Waited } from "./waits";

export function Life({ task, events }: { task: Task; events: TaskEvent[] | null }) {
  const spans = spansOf(task, events ?? [], now.value);
  const first = spans[0]?.from ?? now.value;
  const last = Math.max(first + 1, spans.at(-1)?.to ?? now.value);
  const [at, setAt] = useState<number | null>(null);
  return (
    <section class="card" aria-label={t("task.life")} data-testid="life">
      <header>
        <h2>{t("task.life")}</h2>
        <span class="gap" />
        <span class="muted">{duration(last - first)}</span>
      </header>
      <div class="life" role="list">
        {spans.map((span) => (
          <i
            key={`${span.kind}${span.from}`}
            role="listitem"
            class={`${span.kind} ${span.outcome} ${span.open ? "going" : ""}`}
            style={{ flexGrow: Math.max(1, span.to - span.from) }}
            title={`${named(span)}: ${duration(span.to - span.from)}\n${exact(span.from, language.value)}`}
            aria-label={`${named(span)}: ${duration(span.to - span.from)}`}
          >
            {span.kind === "waiting" ? (
              <button type="button" title={t("life.ask")} onClick={(event) => setAt(timeOf(event, span))}>
                {named(span)} <b>{duration(span.to - span.from)}</b>
              </button>
            ) : (
              <span>
                {named(span)} <b>{duration(span.to - span.from)}</b>
              </span>
            )}
          </i>
        ))}
      </div>
      {at === null ? null : <Waited task={task} at={at} />}
      <details>
        <summary>
          {t("life.events")} {events ? <span class="muted">{events.length}</span> : null}
        </summary>
        <ol class="events" data-testid="events">
          {(events ?? []).map((event, at) => (
            <li key={`${event.index}.${at}`}>
              <Time at={event.at} />
              <b>{word("event", event.type)}</b>
              <span class="muted">{factsText(event.facts)}</span>
            </li>
          ))}
        </ol>
      </details>
    </section>
  );
}

/** The time under the pointer; the middle if a key was pressed. */
function timeOf(event: MouseEvent, span: Span): number {
  const place = (event.currentTarget as HTMLElement).getBoundingClientRect();
  const share = event.detail === 0 ? 0.5 : (event.clientX - place.left) / place.width;
  return Math.round(span.from + Math.min(1, Math.max(0, share)) * (span.to - span.from - 1));
}

function named(span: Span): string {
  const outcome = span.outcome ? word("status", span.outcome) : word("life", span.kind);
  return span.kind === "waiting" || span.attempt < 2 ? outcome : `${t("life.attempt", { n: span.attempt })}, ${outcome}`;
}

