// A task's life on one line of time, and the events behind it.
import { exact } from "../format";
import { duration, language, t, word } from "../i18n";
import { now } from "../now";
import type { Task, TaskEvent } from "../types";
import { factsText } from "../ui/facts";
import { Time } from "../ui/parts";
import { spansOf, type Span } from "./spans";

export function Life({ task, events }: { task: Task; events: TaskEvent[] | null }) {
  const spans = spansOf(task, events ?? [], now.value);
  const first = spans[0]?.from ?? now.value;
  const last = Math.max(first + 1, spans.at(-1)?.to ?? now.value);
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
            <span>
              {named(span)} <b>{duration(span.to - span.from)}</b>
            </span>
          </i>
        ))}
      </div>
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

function named(span: Span): string {
  const outcome = span.outcome ? word("status", span.outcome) : word("life", span.kind);
  return span.kind === "waiting" || span.attempt < 2 ? outcome : `${t("life.attempt", { n: span.attempt })}, ${outcome}`;
}

