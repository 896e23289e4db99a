// Which task had which GPU when, and which will have one next.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { board } from "../board/stream";
import { number } from "../format";
import { duration, t } from "../i18n";
import { now } from "../now";
import { route, setQuery } from "../router";
import { useBars, useExpected, type Expected } from "../timeline/data";
import { HUES, type Lane } from "../timeline/draw";
import { Gantt } from "../timeline/gantt";
import { bounded, huesOf, zoomed, type Bar, type Range } from "../timeline/scale";
import type { Board } from "../types";
import { Empty, nodeAddress, Page, ProblemBox, Segments, Skeleton, State, TaskLink, Time } from "../ui/parts";

const HOUR = 3_600_000;
const SPANS: [string, number][] = [
  ["timeline.hour", HOUR],
  ["timeline.sixHours", 6 * HOUR],
  ["timeline.day", 24 * HOUR],
  ["timeline.week", 168 * HOUR],
];
const FEW_NODES = 40; // up to so many, the server is asked for all of them at once
const MAX_NODES_ASKED = 80;
const MAX_NAMED = 12; // tenants of the legend

export function Timeline() {
  const known = board.value;
  return (
    <Page title={t("timeline.title")} testid="timeline">
      {known ? <Live board={known} /> : <Skeleton height={420} />}
    </Page>
  );
}

/** The piece of time in view is part of the address: a link shows the same to somebody else. */
function useRange(): [Range, (range: Range) => void, number] {
  const { query } = route.value;
  const span = Number(query.get("span")) * 1_000 || HOUR;
  const end = Number(query.get("end")) * 1_000;
  const nowMs = now.value;
  const [held, setHeld] = useState<Range | null>(null); // while a hand moves it
  const timer = useRef(0);
  const fromAddress = useMemo(() => {
    const to = end || nowMs + span * 0.2;
    return { from: to - span, to };
  }, [span, end, end ? 0 : Math.floor(nowMs / Math.max(1_000, span / 1_500))]);
  const setRange = (range: Range) => {
    setHeld(range);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => {
      setQuery({ span: String(Math.round((range.to - range.from) / 1_000)), end: String(Math.round(range.to / 1_000)) }, { replace: true });
      setHeld(null);
    }, 400);
  };
  useEffect(() => () => window.clearTimeout(timer.current), []);
  return [held ?? fromAddress, setRange, span];
}

function Live({ board: known }: { board: Board }) {
  const { query } = route.value;
  const text = query.get("find") ?? "";
  const asTable = query.get("as") === "table";
  const [range, setRange, span] = useRange();
  const [seen, setSeen] = useState<[number, number]>([0, 60]);
  const expected = useExpected(range.to > now.value);
  const nodes = useMemo(() => known.nodes.id.map((id, at) => ({ id, at })).filter(({ id }) => id.toLowerCase().includes(text.toLowerCase())), [known.nodes.id, text]);
  const lanes = useMemo(() => lanesOf(known, nodes.map(({ at }) => at), expected), [known.nodes.id, known.gpus.id, nodes, expected]);
  const asked = useMemo(() => nodesInView(lanes, seen, nodes.length, known.nodes.id.length), [lanes, seen[0], seen[1], nodes.length]);
  const told = useBars(range, now.value, asked);
  const last = useRef(told.data);
  if (told.data) last.current = told.data;
  const bars = last.current;
  const live = !query.get("end");
  const hues = useMemo(() => huesOf([...(bars?.bars ?? []).map((bar) => bar.tenant_id), ...expected.map(({ bar }) => bar.tenant_id)], HUES.length), [bars, expected]);
  const zoom = (factor: number) => {
    const next = zoomed(range, factor, (range.from + range.to) / 2);
    if (live) setQuery({ span: String(Math.round((next.to - next.from) / 1_000)) }, { replace: true }); // now stays in view
    else setRange(bounded(next, now.value));
  };
  return (
    <section class="card">
      <header>
        <Segments
          label={t("timeline.title")}
          value={live ? String(span) : ""}
          testid="timeline-span"
          options={SPANS.map(([key, ms]) => [String(ms), t(key as "timeline.hour")])}
          onChange={(ms) => setQuery({ span: String(Number(ms) / 1_000), end: null })}
        />
        <div class="segments">
          <button type="button" aria-label="+" onClick={() => zoom(0.6)} data-testid="zoom-in">
            +
          </button>
          <button type="button" aria-label="−" onClick={() => zoom(1.6)} data-testid="zoom-out">
            −
          </button>
        </div>
        <button type="button" disabled={live} onClick={() => setQuery({ end: null })}>
          {t("timeline.now")}
        </button>
        <span class="gap" />
        <input type="search" class="filter" placeholder={t("timeline.filter")} aria-label={t("timeline.filter")} value={text} onInput={(event) => setQuery({ find: event.currentTarget.value }, { replace: true })} />
        <Segments
          label={t("timeline.title")}
          value={asTable ? "table" : "chart"}
          options={[
            ["chart", t("timeline.asChart")],
            ["table", t("timeline.asTable")],
          ]}
          onChange={(as) => setQuery({ as: as === "table" ? as : null }, { replace: true })}
        />
      </header>
      {told.problem ? <ProblemBox problem={told.problem} retry={told.refresh} /> : null}
      {asTable ? <BarTable bars={bars?.bars ?? []} /> : <Gantt lanes={lanes} bars={bars?.bars ?? []} range={range} now={now.value} hues={hues} onRange={setRange} onVisible={(first, end) => setSeen([first, end])} />}
      <div class="legend">
        {[...hues].slice(0, MAX_NAMED).map(([tenant, hue]) => (
          <span key={tenant} class="legend-state">
            <i class="swatch" style={{ background: `var(--${HUES[hue]})` }} />
            {tenant}
          </span>
        ))}
      </div>
      <p class="muted small-print">
        {bars && bars.bars.length === 0 ? `${t("timeline.none")} ` : ""}
        {bars?.truncated ? t("timeline.cut", { n: number(bars.bars.length), total: number(bars.total) }) : t("timeline.help")}
      </p>
    </section>
  );
}

function lanesOf(known: Board, nodes: number[], expected: Expected[]): Lane[] {
  const lanes: Lane[] = expected.map((each, at) => ({ label: each.bar.task_id.replace("task-", ""), node: t("timeline.waiting"), gpu: "", first: at === 0, expected: each }));
  for (const node of nodes) {
    const first = known.nodes.first[node] ?? 0;
    for (let gpu = 0; gpu < (known.nodes.gpus[node] ?? 0); gpu++) {
      lanes.push({ label: String(known.gpus.index[first + gpu] ?? gpu), node: known.nodes.id[node] ?? "", gpu: known.gpus.id[first + gpu] ?? "", first: gpu === 0 });
    }
  }
  return lanes;
}

/** Of a large cluster only what is in view is asked for. Empty: all. */
function nodesInView(lanes: Lane[], [first, last]: [number, number], shown: number, all: number): string[] {
  if (shown === all && all <= FEW_NODES) return [];
  const wide = last - first;
  const names = new Set(lanes.slice(Math.max(0, first - wide), last + wide).filter((lane) => lane.gpu).map((lane) => lane.node));
  return [...names].slice(0, MAX_NODES_ASKED);
}

function BarTable({ bars }: { bars: Bar[] }) {
  if (!bars.length) return <Empty title={t("timeline.none")} />;
  return (
    <div class="table-wrap">
      <table data-testid="timeline-table">
        <thead>
          <tr>
            <th>{t("tasks.id")}</th>
            <th>{t("tasks.name")}</th>
            <th>{t("tasks.tenant")}</th>
            <th>{t("tasks.status")}</th>
            <th>{t("task.node")}</th>
            <th class="num">{t("tasks.gpus")}</th>
            <th>{t("task.started")}</th>
            <th class="num">{t("tasks.time")}</th>
          </tr>
        </thead>
        <tbody>
          {bars.slice(-300).toReversed().map((bar) => (
            <tr key={`${bar.task_id}.${bar.attempt}.${bar.node}`}>
              <td>
                <TaskLink id={bar.task_id} />
              </td>
              <td>{bar.name}</td>
              <td>{bar.tenant_id}</td>
              <td>
                <State group="status" value={bar.status} />
              </td>
              <td>
                <a href={nodeAddress(bar.node)}>{bar.node}</a>
              </td>
              <td class="num">{bar.gpu_ids.length}</td>
              <td>
                <Time at={bar.start} />
              </td>
              <td class="num">{duration((bar.end ?? now.value) - bar.start)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
