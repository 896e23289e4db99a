// What a task prints, as it prints it.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { asProblem, get, isAbort, path, problemOf, ApiError } from "../api";
import { exact, number, parseTime } from "../format";
import { language, problemText, t } from "../i18n";
import type { OutputPlace, Problem, Task } from "../types";
import { ProblemBox } from "../ui/parts";
import { found, Lines, MAX_LINES } from "./lines";
import type { Line } from "./terminal";
import { blocks } from "./text";

const AGAIN_MS = 3_000;

export function Log({ task }: { task: Task }) {
  const live = task.status === "pending" || task.status === "running";
  const [attempt, setAttempt] = useState(0); // 0: the latest
  const [rank, setRank] = useState(0);
  const [paused, setPaused] = useState(false);
  const [text, setText] = useState("");
  const [timed, setTimed] = useState(false);
  const query = { attempt: attempt || null, rank: rank || null };
  const told = useOutput(task.task_id, query, timed, live && !attempt, paused);
  const latest = task.attempt || 1;
  return (
    <section class="card log" aria-label={t("task.log")} data-testid="log">
      <header>
        <h2>{t("task.log")}</h2>
        <span class="muted" role="status">
          {live && !attempt ? (paused ? t("log.paused") : t("log.follow")) : ""}
        </span>
        <span class="gap" />
        {latest > 1 ? (
          <select aria-label={t("task.attempts")} value={attempt} onChange={(event) => setAttempt(Number(event.currentTarget.value))}>
            {Array.from({ length: latest }, (_, at) => latest - at).map((each) => (
              <option key={each} value={each === latest ? 0 : each}>
                {t("log.attempt", { n: each })}
              </option>
            ))}
          </select>
        ) : null}
        {task.nodes > 1 ? (
          <select aria-label={t("log.rank", { n: "" })} value={rank} onChange={(event) => setRank(Number(event.currentTarget.value))}>
            {Array.from({ length: task.nodes }, (_, each) => (
              <option key={each} value={each}>
                {t("log.rank", { n: each })}
              </option>
            ))}
          </select>
        ) : null}
        <input type="search" class="filter" placeholder={t("log.find")} aria-label={t("log.find")} value={text} onInput={(event) => setText(event.currentTarget.value)} data-testid="log-find" />
        <button type="button" aria-pressed={timed} onClick={() => setTimed(!timed)} data-testid="log-times">
          {t("log.times")}
        </button>
        {live ? (
          <button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)} data-testid="log-pause">
            {paused ? t("log.resume") : t("log.pause")}
          </button>
        ) : null}
        <a class="button" href={path(`/api/v1/tasks/${task.task_id}/logs`, query)} download={`${task.task_id}.log`}>
          {t("log.download")}
        </a>
      </header>
      {told.problem && told.lines.length === 0 && !live ? <p class="muted">{told.problem.code === "output_unavailable" ? problemText(told.problem) : ""}</p> : null}
      {told.problem && told.problem.code !== "output_unavailable" ? <ProblemBox problem={told.problem} /> : null}
      <Text lines={told.lines} dropped={told.dropped} find={text.trim()} follow={live && !paused} empty={live ? t("log.empty") : t("log.none")} />
      <Missing task={task} query={query} over={!live || attempt > 0} />
      {told.dropped ? <small class="muted">{t("log.cut", { n: number(MAX_LINES) })}</small> : null}
    </section>
  );
}

/** Which part of the output the scheduler does not have, and where it still is. */
function Missing({ task, query, over }: { task: Task; query: Record<string, number | null>; over: boolean }) {
  const [place, setPlace] = useState<OutputPlace | null>(null);
  useEffect(() => {
    setPlace(null);
    if (!over) return;
    const controller = new AbortController();
    get<OutputPlace>(`/api/v1/tasks/${task.task_id}/output`, query, controller.signal)
      .then(setPlace)
      .catch(() => undefined); // the output itself says what is missing
    return () => controller.abort();
  }, [task.task_id, task.status, query.attempt, query.rank, over]);
  const left = place?.missing.reduce((sum, each) => sum + each.end - each.begin, 0) ?? 0;
  if (!place || !left) return null;
  const until = parseTime(place.kept_until);
  const isKept = place.node !== null && until !== null && until > Date.now();
  const facts = { node: place.node ?? "", until: until === null ? "" : exact(until, language.value) };
  return (
    <p class="muted" data-testid="log-missing">
      {t("log.parts", { all: number(place.bytes), n: number(left) })}{" "}
      {!isKept ? t("log.parts.gone") : place.node_connected ? t("log.parts.node", facts) : t("log.parts.away", facts)}
    </p>
  );
}

function Text({ lines, dropped, find, follow, empty }: { lines: Line[]; dropped: number; find: string; follow: boolean; empty: string }) {
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  const matches = useMemo(() => (find ? found(lines, find) : null), [lines, find]);
  useLayoutEffect(() => {
    if (follow && atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, follow]);
  const onScroll = () => {
    const element = box.current;
    if (element) atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
  };
  return (
    <>
      {matches ? <small class="muted">{t("log.matches", { n: number(matches.length) })}</small> : null}
      <pre ref={box} class="output" tabIndex={0} role="log" aria-live="off" aria-label={t("log.region")} onScroll={onScroll} data-testid="log-text">
        {matches
          ? matches.slice(-1_000).map((each) => (
              <div key={each.number}>
                <span class="line-number">{each.number}</span>
                <Marked line={each.line} find={find} />
              </div>
            ))
          : lines.length ? blocks(lines, dropped) : <span class="muted">{empty}</span>}
      </pre>
    </>
  );
}

function Marked({ line, find }: { line: string; find: string }) {
  const at = line.toLowerCase().indexOf(find.toLowerCase());
  return (
    <>
      {line.slice(0, at)}
      <mark>{line.slice(at, at + find.length)}</mark>
      {line.slice(at + find.length)}
    </>
  );
}

interface Output {
  lines: Line[];
  dropped: number;
  problem: Problem | null;
}

/** Reads the output; follows it while the task lives, and takes it up again when the stream breaks off. */
function useOutput(id: string, query: Record<string, number | null>, timed: boolean, follow: boolean, paused: boolean): Output {
  const [output, setOutput] = useState<Output>({ lines: [], dropped: 0, problem: null });
  const hold = useRef(paused);
  const show = useRef<() => void>(() => undefined);
  hold.current = paused;
  useEffect(() => {
    if (!paused) show.current();
  }, [paused]);
  useEffect(() => {
    const controller = new AbortController();
    let again = 0;
    const read = async () => {
      const lines = new Lines(timed);
      let frame = 0;
      show.current = () => setOutput({ lines: lines.all(), dropped: lines.dropped, problem: null });
      const later = () => {
        frame ||= requestAnimationFrame(() => {
          frame = 0;
          if (!hold.current) show.current();
        });
      };
      try {
        const url = path(`/api/v1/tasks/${id}/logs`, { ...query, tail: MAX_LINES, times: timed ? "true" : null, follow: follow ? "true" : null });
        const answer = await fetch(url, { signal: controller.signal, credentials: "same-origin" });
        if (!answer.ok) throw new ApiError(await problemOf(answer));
        await drain(answer, lines, later);
        show.current();
      } catch (error) {
        if (isAbort(error)) return;
        const problem = asProblem(error);
        setOutput((old) => ({ ...old, problem }));
      }
      if (follow && !controller.signal.aborted) again = window.setTimeout(() => void read(), AGAIN_MS);
    };
    void read();
    return () => {
      controller.abort();
      window.clearTimeout(again);
    };
  }, [id, JSON.stringify(query), timed, follow]);
  return output;
}

async function drain(answer: Response, lines: Lines, onPiece: () => void): Promise<void> {
  const reader = answer.body?.getReader();
  if (!reader) return;
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    lines.push(decoder.decode(value, { stream: true }));
    onPiece();
  }
}
