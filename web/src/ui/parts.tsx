// Small pieces that every view uses.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { exact, parseTime, relative } from "../format";
import { fieldText, language, problemText, t, word } from "../i18n";
import { now } from "../now";
import type { Problem } from "../types";

/** A moment: how long ago, and exactly when on hover. */
export function Time({ at }: { at: string | number | null | undefined }) {
  const ms = typeof at === "number" ? at : parseTime(at);
  if (ms === null) return <span class="muted">–</span>;
  return (
    <time dateTime={new Date(ms).toISOString()} title={exact(ms, language.value)}>
      {relative(ms, now.value, language.value)}
    </time>
  );
}

export function State({ group, value, note }: { group: "status" | "gpu" | "node" | "severity" | "service" | "replica" | "worker"; value: string; note?: string }) {
  return (
    <span class="state">
      <i class={`dot ${value.replace(" ", "-")}`} aria-hidden="true" />
      {word(group, value)}
      {note ? <span class="muted">{note}</span> : null}
    </span>
  );
}

export function Meter({ value, most, label }: { value: number; most: number; label: string }) {
  const part = most > 0 ? Math.min(1, value / most) : value > 0 ? 1 : 0;
  return (
    <div class="meter" role="img" aria-label={label} title={label}>
      <i class={most > 0 && value > most ? "full" : ""} style={{ width: `${part * 100}%` }} />
    </div>
  );
}

export function Skeleton({ height = 18, lines = 1 }: { height?: number; lines?: number }) {
  return (
    <div class="stack" role="status" aria-label={t("common.loading")}>
      {Array.from({ length: lines }, (_, line) => (
        <div key={line} class="skeleton" style={{ height: `${height}px` }} />
      ))}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty" data-testid="empty">
      <strong>{title}</strong>
      {children}
    </div>
  );
}

export function CopyLine({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = () => {
    void navigator.clipboard?.writeText(text).then(() => setCopied(true));
  };
  return (
    <span class="copy-line">
      <code>{text}</code>
      <button type="button" onClick={copy}>
        {copied ? t("common.copied") : t("common.copy")}
      </button>
    </span>
  );
}

export function ProblemBox({ problem, retry }: { problem: Problem; retry?: () => void }) {
  const words = problemText(problem);
  // of a single field the detail says all there is to say
  const fields = (problem.errors ?? []).filter((error) => error.path && !problem.detail.includes(error.detail));
  return (
    <div class="problem" role="alert" data-testid="problem">
      {problem.title && words === problem.detail ? <strong>{problem.title}. </strong> : null}
      <span>{words}</span>
      {fields.length > 0 ? (
        <ul>
          {fields.map((error) => (
            <li key={error.path}>
              <code>{error.path}</code> {fieldText(error)}
            </li>
          ))}
        </ul>
      ) : null}
      <div class="row muted">
        {problem.request_id ? <small>{t("problem.request", { id: problem.request_id })}</small> : null}
        {retry ? (
          <button type="button" class="plain" onClick={retry}>
            {t("common.retry")}
          </button>
        ) : null}
      </div>
    </div>
  );
}

export function Segments<V extends string>(props: { label: string; value: V; options: [V, string][]; onChange: (value: V) => void; testid?: string }) {
  return (
    <div class="segments" role="group" aria-label={props.label} data-testid={props.testid}>
      {props.options.map(([value, text]) => (
        <button key={value} type="button" aria-pressed={value === props.value} onClick={() => props.onChange(value)}>
          {text}
        </button>
      ))}
    </div>
  );
}

export function TaskLink({ id }: { id: string | number }) {
  const name = typeof id === "number" ? `task-${id}` : id;
  return (
    <a href={`/tasks/${name}`} class="nowrap">
      {name}
    </a>
  );
}

export function nodeAddress(id: string): string {
  return `/nodes?node=${encodeURIComponent(id)}`; // not in the path: a node's name may have dots
}

export function Page(props: { title: ComponentChildren; actions?: ComponentChildren; testid: string; children: ComponentChildren }) {
  return (
    <div data-testid={`view-${props.testid}`}>
      <div class="page-head">
        <h1 tabIndex={-1}>{props.title}</h1>
        <span class="gap" />
        {props.actions}
      </div>
      {props.children}
    </div>
  );
}

/** Names and values; rows without a value are left out. */
export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows
        .filter(([, value]) => value !== null && value !== "")
        .map(([name, value]) => (
          <>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </>
        ))}
    </dl>
  );
}
