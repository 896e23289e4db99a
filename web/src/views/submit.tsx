// A new task. What would become of it is told before it is sent.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { asProblem, get, isAbort, post } from "../api";
import { board } from "../board/stream";
import { blockerText, fieldText, t, word } from "../i18n";
import { may, me } from "../me";
import { go, route } from "../router";
import { BLANK, FIELD_OF, formOf, taskOf, type Form } from "../submit/form";
import type { Problem, Submitted, Task, Whatif } from "../types";
import { Empty, Page, ProblemBox, Time } from "../ui/parts";
import { say } from "../ui/toast";

type Wrong = Partial<Record<keyof Form, string>>;

export function Submit() {
  const like = route.value.query.get("like");
  const [form, setForm] = useState<Form>(BLANK);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    if (like) void get<Task>(`/api/v1/tasks/${encodeURIComponent(like)}`).then((task) => setForm(formOf(task)), (error: unknown) => setProblem(asProblem(error)));
  }, [like]);
  const { body, mistakes } = taskOf(form);
  const ready = form.command.trim() !== "" && mistakes.length === 0;
  const verdict = useVerdict(ready && may("whatif.ask") ? JSON.stringify(body) : "");
  // Not for a scheduler that cannot tell now: then the submit itself tells.
  const refused = !verdict.asking && verdict.problem !== null && verdict.problem.status >= 400 && verdict.problem.status < 500;
  const wrong: Wrong = { ...wrongOf(verdict.problem), ...wrongOf(problem) };
  for (const mistake of mistakes) wrong[mistake.field] = mistake.kind === "time" ? t("submit.badTime") : t("submit.badLine", { line: mistake.value });
  const set = (changes: Partial<Form>) => {
    setForm({ ...form, ...changes });
    setProblem(null);
  };
  const send = (event: Event) => {
    event.preventDefault();
    if (!ready || refused) return;
    setBusy(true);
    post<Submitted>("/api/v1/tasks", body)
      .then((made) => {
        say(t("submit.done", { id: made.task_id }), `/tasks/${made.task_id}`);
        go(`/tasks/${made.task_id}`);
      })
      .catch((error: unknown) => setProblem(asProblem(error)))
      .finally(() => setBusy(false));
  };
  if (me.value && !may("task.submit")) {
    return (
      <Page title={t("submit.title")} testid="submit">
        <Empty title={t("account.mayNot", { role: word("role", me.value.role) })} />
      </Page>
    );
  }
  return (
    <Page title={t("submit.title")} testid="submit">
      <form class="submit" onSubmit={send} data-testid="submit-form">
        <section class="card stack">
          <Fields form={form} set={set} wrong={wrong} />
          {problem ? <ProblemBox problem={problem} /> : null}
          <footer class="row">
            <button type="submit" class="primary" disabled={!ready || busy || refused} data-testid="submit-send">
              {t("submit.send")}
            </button>
          </footer>
        </section>
        {may("whatif.ask") ? <Verdict asked={ready} told={verdict} /> : null}
      </form>
    </Page>
  );
}

function Fields({ form, set, wrong }: { form: Form; set: (changes: Partial<Form>) => void; wrong: Wrong }) {
  const line = (name: keyof Form, hint?: string, options: { list?: string; placeholder?: string } = {}) => (
    <Labelled name={name} wrong={wrong[name]} {...(hint ? { hint } : {})}>
      <input
        id={`f-${name}`}
        type="text"
        name={name}
        value={String(form[name])}
        aria-invalid={wrong[name] ? "true" : undefined}
        aria-describedby={`h-${name}`}
        autocomplete="off"
        {...options}
        onInput={(event) => set({ [name]: event.currentTarget.value })}
      />
    </Labelled>
  );
  return (
    <>
      <Labelled name="command" wrong={wrong.command} hint={t("submit.commandHint")}>
        <textarea id="f-command" class="mono" rows={3} required value={form.command} aria-describedby="h-command" spellcheck={false} data-testid="submit-command" onInput={(event) => set({ command: event.currentTarget.value })} />
      </Labelled>
      <div class="field-grid">
        {line("gpus")}
        {line("model", undefined, { list: "models", placeholder: t("submit.any") })}
        {line("memory", t("submit.memoryHint"))}
        {line("priority", t("submit.priorityHint"), { list: "levels", placeholder: "50" })}
        {line("name")}
        {line("tenant", undefined, { list: "tenants", placeholder: me.value?.tenants.find((name) => name !== "*") ?? "default" })}
      </div>
      <label class="row">
        <input type="checkbox" checked={form.shared} onChange={(event) => set({ shared: event.currentTarget.checked })} /> {t("submit.shared")}
      </label>
      <details open={Boolean(wrong.timeout || wrong.env || wrong.array || wrong.after || wrong.nodes || wrong.workdir)}>
        <summary>{t("submit.more")}</summary>
        <div class="field-grid">
          <Labelled name="pool" wrong={wrong.pool}>
            <select id="f-pool" value={form.pool} onChange={(event) => set({ pool: event.currentTarget.value })}>
              <option value="">{t("submit.poolAuto")}</option>
              <option value="online">{word("pool", "online")}</option>
              <option value="batch">{word("pool", "batch")}</option>
            </select>
          </Labelled>
          {line("nodes")}
          {line("timeout", t("submit.timeoutHint"))}
          {line("retries")}
          {line("workdir")}
          {line("array", t("submit.arrayHint"))}
          {line("after", t("submit.afterHint"))}
        </div>
        <Labelled name="env" wrong={wrong.env} hint={t("submit.envHint")}>
          <textarea id="f-env" class="mono" rows={3} value={form.env} spellcheck={false} aria-describedby="h-env" onInput={(event) => set({ env: event.currentTarget.value })} />
        </Labelled>
      </details>
      <datalist id="models">{board.value?.models.map((model) => <option key={model} value={model} />)}</datalist>
      <datalist id="tenants">{board.value?.tenants.map((tenant) => <option key={tenant.id} value={tenant.id} />)}</datalist>
      <datalist id="levels">{["low", "normal", "high", "critical"].map((level) => <option key={level} value={level} />)}</datalist>
    </>
  );
}

function Labelled(props: { name: keyof Form; wrong?: string | undefined; hint?: string; children: ComponentChildren }) {
  return (
    <div class="field">
      <label for={`f-${props.name}`}>{t(`submit.${props.name}`)}</label>
      {props.children}
      <span id={`h-${props.name}`} class={props.wrong ? "wrong" : "hint"}>
        {props.wrong ?? props.hint ?? ""}
      </span>
    </div>
  );
}

interface Told {
  asking: boolean;
  whatif: Whatif | null;
  problem: Problem | null;
}

/** Asks what would happen, a moment after the last change. */
function useVerdict(body: string): Told {
  const [told, setTold] = useState<Told>({ asking: false, whatif: null, problem: null });
  useEffect(() => {
    if (!body) {
      setTold({ asking: false, whatif: null, problem: null });
      return;
    }
    const controller = new AbortController();
    setTold((old) => ({ ...old, asking: true }));
    const timer = window.setTimeout(() => {
      post<Whatif>("/api/v1/whatif", { submit: JSON.parse(body) as unknown }, controller.signal)
        .then((whatif) => setTold({ asking: false, whatif, problem: whatif.rejected }))
        .catch((error: unknown) => isAbort(error) || setTold({ asking: false, whatif: null, problem: asProblem(error) }));
    }, 350);
    return () => {
      window.clearTimeout(timer);
      controller.abort();
    };
  }, [body]);
  return told;
}

function wrongOf(problem: Problem | null): Wrong {
  const wrong: Wrong = {};
  for (const error of problem?.errors ?? []) {
    const name = error.path.replace(/^submit\.(task\.)?/, "").split(/[.[]/)[0] ?? "";
    const field = FIELD_OF[name];
    if (field) wrong[field] = fieldText(error);
  }
  return wrong;
}

function Verdict({ asked, told }: { asked: boolean; told: Told }) {
  return (
    <section class="card verdict" aria-live="polite" aria-label={t("submit.verdict")} data-testid="verdict">
      <header>
        <h2>{t("submit.verdict")}</h2>
        {told.asking ? <span class="muted">{t("submit.checking")}</span> : null}
      </header>
      {!asked ? <p class="muted">{t("submit.typing")}</p> : null}
      {asked && told.problem ? (
        <>
          <p class="bad-text">{t("submit.rejected")}</p>
          <ProblemBox problem={told.problem} />
        </>
      ) : null}
      {asked && told.whatif && !told.problem ? <Outcome whatif={told.whatif} /> : null}
    </section>
  );
}

function Outcome({ whatif }: { whatif: Whatif }) {
  const starts = whatif.starts.filter((start) => start.new);
  const wait = whatif.waits[0];
  const delays = whatif.delays.length + (whatif.others?.delays ?? 0);
  const stops = whatif.stops.length + (whatif.others?.stops ?? 0);
  return (
    <div class="stack">
      {starts.length ? (
        <p class="note good" data-testid="verdict-starts">
          {t("submit.startsAt", { nodes: [...new Set(starts.flatMap((start) => start.nodes))].join(", ") })}
        </p>
      ) : null}
      {wait ? (
        <div class="note wait" data-testid="verdict-waits">
          <p>
            {wait.expected_start ? t("submit.waitsUntil", { time: "" }).replace(/[.。]$/, "") : t("submit.waitsUnknown")}
            {wait.expected_start ? <Time at={wait.expected_start} /> : null}
          </p>
          {wait.position ? <p>{t("submit.place", { n: wait.position })}</p> : null}
          <ul class="bullets">
            {wait.blockers.map((blocker) => (
              <li key={blocker.code + blocker.detail}>{blockerText(blocker)}</li>
            ))}
          </ul>
        </div>
      ) : null}
      {delays ? <p class="muted">{t("submit.delays", { n: delays })}</p> : null}
      {stops ? (
        <p class="bad-text">
          {stops} {t("quota.stops")}
        </p>
      ) : null}
    </div>
  );
}
