// The first page: is everything well, how full is it, what waits.
import { useMemo } from "preact/hooks";
import { gpuAt, largestBlock } from "../board/board";
import { board } from "../board/stream";
import { megabytes, number, percent } from "../format";
import { HeatMap, Legend } from "../heatmap/heatmap";
import { isUnmeasured, UNMEASURED, type Measure } from "../heatmap/draw";
import { GpuPanel, missing } from "../heatmap/gpu";
import { brief, t, word } from "../i18n";
import { route, setQuery } from "../router";
import type { Board } from "../types";
import { Chart } from "../ui/chart";
import { Users } from "./users";
import { Schedulers } from "./schedulers";
import { CopyLine, Empty, Meter, nodeAddress, Page, Segments, Skeleton, State, TaskLink } from "../ui/parts";

const MAX_ROWS = 400; // of the table; the filter finds the others

export function Cluster() {
  const known = board.value;
  return (
    <Page title={t("cluster.title")} testid="cluster">
      {known ? <Live board={known} /> : <Waiting />}
    </Page>
  );
}

function Waiting() {
  return (
    <div class="stack">
      <div class="figures">
        {Array.from({ length: 6 }, (_, at) => (
          <div key={at} class="figure skeleton" />
        ))}
      </div>
      <div class="charts">
        <Skeleton height={168} />
        <Skeleton height={168} />
        <Skeleton height={168} />
      </div>
      <Skeleton height={300} />
    </div>
  );
}

function Live({ board: known }: { board: Board }) {
  return (
    <div class="stack">
      <Figures board={known} />
      <Charts board={known} />
      <Users />
      <Schedulers />
      {known.gpus.id.length || known.nodes.id.length ? (
        <Gpus board={known} />
      ) : (
        <section class="card">
          <Empty title={t("cluster.noNodes")}>
            <p>{t("cluster.noNodesHow")}</p>
            <CopyLine text="dgpu agent --config agent.yaml" />
          </Empty>
        </section>
      )}
    </div>
  );
}

function Figures({ board: known }: { board: Board }) {
  const counts = known.counts;
  const all = known.gpus.id.length;
  const nodes = known.nodes.id.length;
  const block = largestBlock(known);
  const figures: [name: string, label: string, value: string, note: string, title?: string][] = [
    ["busy", t("cluster.busy"), number(counts.busy), t("cluster.of", { n: number(all) })],
    ["block", t("cluster.block"), number(block.gpus), block.gpus ? t("cluster.blockOn", { n: block.gpus, node: block.node }) : "", t("cluster.blockWhat")],
    ["util", t("cluster.util"), counts.util === null ? "–" : percent(counts.util / 100), ""],
    ["running", t("cluster.running"), number(counts.running), ""],
    ["waiting", t("cluster.waiting"), number(counts.waiting), ""],
    ["wait", t("cluster.wait"), brief(counts.wait_p50_ms), counts.wait_p95_ms === null ? "" : t("cluster.waitTail", { p95: brief(counts.wait_p95_ms) }), t("cluster.waitWhat", { p95: brief(counts.wait_p95_ms) })],
    ["done", t("cluster.done"), number(counts.finished_per_min, 1), ""],
    ["nodes", t("cluster.nodes"), number(counts.nodes.ready ?? 0), t("cluster.of", { n: number(nodes) })],
  ];
  return (
    <div class="figures">
      {figures.map(([name, label, value, note, title]) => (
        <div key={name} class="figure" title={title} data-testid={`figure-${name}`}>
          <span class="figure-label">{label}</span>
          <span class="figure-value">
            <span class="nowrap">{value}</span>{" "}
            {note ? <small class="nowrap">{note}</small> : null}
          </span>
        </div>
      ))}
    </div>
  );
}

function Charts({ board: known }: { board: Board }) {
  const history = known.history;
  const times = useMemo(() => history.at_ms.map((ms) => (ms ?? 0) / 1_000), [history]);
  const waits = useMemo(() => history.wait_p50_ms.map((ms) => (ms === null ? null : ms / 1_000)), [history]);
  return (
    <div class="charts">
      <section class="card" aria-label={t("cluster.chartUtil")}>
        <Chart label={t("cluster.chartUtil")} times={times} latest={false} most={100} lines={[{ label: t("cluster.chartUtil"), colour: "blue", values: history.util, fill: true }]} />
      </section>
      <section class="card" aria-label={t("cluster.chartQueue")}>
        <Chart
          label={t("cluster.chartQueue")}
          times={times}
          latest={false}
          lines={[
            { label: t("cluster.waiting"), colour: "orange", values: history.waiting, fill: true },
            { label: t("cluster.running"), colour: "blue", values: history.running },
          ]}
        />
      </section>
      <section class="card" aria-label={t("cluster.chartWait")}>
        <Chart label={t("cluster.chartWait")} times={times} latest={false} lines={[{ label: t("cluster.chartWait"), colour: "violet", values: waits, fill: true }]} />
      </section>
      <Pools board={known} />
    </div>
  );
}

function Pools({ board: known }: { board: Board }) {
  return (
    <section class="card pools">
      <header>
        <h2>{t("cluster.pools")}</h2>
      </header>
      {["online", "batch"].map((name) => {
        const pool = known.pools[name];
        if (!pool) return null;
        const use = t("cluster.poolUse", { used: number(pool.used, 1), quota: number(pool.quota, 1) });
        return (
          <div key={name} class="pool" data-testid={`pool-${name}`}>
            <div class="row">
              <b>{word("pool", name)}</b>
              <span class="muted">{use}</span>
            </div>
            <Meter value={pool.used} most={pool.quota} label={use} />
            <small class="muted">
              {t("cluster.poolWaiting", { n: number(pool.waiting) })}
              {pool.borrowed ? ` · ${t("cluster.borrowed", { n: number(pool.borrowed, 1) })}` : ""}
            </small>
          </div>
        );
      })}
    </section>
  );
}

function Gpus({ board: known }: { board: Board }) {
  const { query } = route.value;
  const text = query.get("find") ?? "";
  const measure = (query.get("by") ?? "util") as Measure;
  const asTable = query.get("as") === "table";
  const chosen = placeOf(known, query.get("gpu"));
  const visible = useMemo(() => matching(known, text), [known.nodes.id, known.gpus.tasks, text]);
  const shown = visible.reduce((sum, node) => sum + (known.nodes.gpus[node] ?? 0), 0);
  const choose = (place: number | null) => setQuery({ gpu: place === null ? null : (known.gpus.id[place] ?? null) }, { replace: true });
  const states = ["idle", "unconfirmed", "draining", "error", "offline", "reserved"].filter((state) => state === "idle" || (known.counts[state as "idle"] ?? 0) > 0);
  if (known.gpus.id.some((_, place) => isUnmeasured(known, place, measure))) states.push(UNMEASURED);
  return (
    <div class="gpus">
      <section class="card" aria-label={t("cluster.map")}>
        <header>
          <h2>{t("cluster.map")}</h2>
          <span class="muted">{t("cluster.shown", { shown: number(shown), all: number(known.gpus.id.length) })}</span>
          <span class="gap" />
          <input
            type="search"
            class="filter"
            value={text}
            placeholder={t("cluster.filter")}
            aria-label={t("cluster.filter")}
            data-testid="gpu-filter"
            onInput={(event) => setQuery({ find: event.currentTarget.value }, { replace: true })}
          />
          <Segments<Measure>
            label={t("cluster.colour")}
            value={measure}
            options={[
              ["util", t("cluster.byUtil")],
              ["memory", t("cluster.byMemory")],
              ["temp", t("cluster.byTemp")],
            ]}
            onChange={(by) => setQuery({ by: by === "util" ? null : by }, { replace: true })}
          />
          <Segments
            label={t("cluster.map")}
            value={asTable ? "table" : "map"}
            testid="map-or-table"
            options={[
              ["map", t("cluster.asMap")],
              ["table", t("cluster.asTable")],
            ]}
            onChange={(as) => setQuery({ as: as === "map" ? null : as }, { replace: true })}
          />
        </header>
        {shown === 0 ? <Empty title={t("cluster.noMatch")} /> : asTable ? <GpuTable board={known} visible={visible} /> : <HeatMap board={known} visible={visible} measure={measure} chosen={chosen} onChoose={choose} />}
        {asTable ? null : <Legend measure={measure} states={states} />}
      </section>
      {chosen === null ? null : <GpuPanel gpu={gpuAt(known, chosen)} onClose={() => choose(null)} />}
    </div>
  );
}

function placeOf(known: Board, id: string | null): number | null {
  const place = id ? known.gpus.id.indexOf(id) : -1;
  return place < 0 ? null : place;
}

/** Nodes by name, model of a card, or the number of a task that runs there. */
function matching(known: Board, text: string): number[] {
  const wanted = text.trim().toLowerCase();
  const all = known.nodes.id.map((_, node) => node);
  if (!wanted) return all;
  const task = /^(?:task-)?(\d+)$/.exec(wanted);
  const number = task ? Number(task[1]) : -1;
  return all.filter((node) => {
    if (known.nodes.id[node]?.toLowerCase().includes(wanted)) return true;
    const first = known.nodes.first[node] ?? 0;
    for (let place = first; place < first + (known.nodes.gpus[node] ?? 0); place++) {
      if (known.models[known.gpus.model[place] ?? 0]?.toLowerCase().includes(wanted)) return true;
      if (task && known.gpus.tasks[place]?.includes(number)) return true;
    }
    return false;
  });
}

function GpuTable({ board: known, visible }: { board: Board; visible: number[] }) {
  const places = visible.flatMap((node) => Array.from({ length: known.nodes.gpus[node] ?? 0 }, (_, gpu) => (known.nodes.first[node] ?? 0) + gpu));
  return (
    <div class="table-wrap">
      <table data-testid="gpu-table">
        <thead>
          <tr>
            <th>{t("gpu.node")}</th>
            <th class="num">GPU</th>
            <th>{t("gpu.state")}</th>
            <th>{t("gpu.model")}</th>
            <th class="num">{t("gpu.util")}</th>
            <th class="num">{t("gpu.memory")}</th>
            <th class="num">{t("gpu.memReserved")}</th>
            <th class="num">{t("gpu.memForeign")}</th>
            <th class="num">{t("gpu.temp")}</th>
            <th>{t("gpu.tasks")}</th>
          </tr>
        </thead>
        <tbody>
          {places.slice(0, MAX_ROWS).map((place) => {
            const gpu = gpuAt(known, place);
            return (
              <tr key={gpu.id}>
                <td>
                  <a href={nodeAddress(gpu.node)}>{gpu.node}</a>
                </td>
                <td class="num">{gpu.index}</td>
                <td>
                  <State group="gpu" value={gpu.status} note={missing(gpu)} />
                </td>
                <td class="nowrap">{gpu.model}</td>
                <td class="num">{gpu.util === null ? "–" : `${gpu.util} %`}</td>
                <td class="num">{megabytes(gpu.memUsed)}</td>
                <td class="num">{megabytes(gpu.memReserved)}</td>
                <td class="num">{megabytes(gpu.memForeign)}</td>
                <td class="num">{gpu.temp === null ? "–" : `${gpu.temp} °C`}</td>
                <td>
                  <span class="row">
                    {gpu.tasks.map((task) => (
                      <TaskLink key={task} id={task} />
                    ))}
                  </span>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {places.length > MAX_ROWS ? <p class="muted">{t("common.more", { n: number(places.length - MAX_ROWS) })}</p> : null}
    </div>
  );
}
