// uPlot in a box: it follows the width, the theme and the data, and shows numbers where the pointer is.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { clock, day, number } from "../format";
import { language } from "../i18n";
import { colour, paints } from "../theme";

export interface Line {
  label: string;
  colour: string; // a name of the palette
  values: (number | null)[];
  fill?: boolean;
  dash?: boolean;
}

interface Props {
  label: string;
  times: (number | null)[]; // seconds
  lines: Line[];
  height?: number;
  most?: number; // upper end of the scale, if it has one
  unit?: string;
  latest?: boolean; // false: the page shows the latest values elsewhere
}

const LEAST_S = 60;
const SPAN_OF_ONE_S = 86_400_000;
const FEWEST = 30; // points; a chart of less says little about time

export function Chart({ label, times: allTimes, lines: allLines, height = 132, most, unit = "", latest = true }: Props) {
  const { times, lines } = useMemo(() => known(allTimes, allLines), [allTimes, ...allLines.flatMap((line) => [line.label, line.values])]);
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const shape = `${lines.map((line) => line.label + line.colour).join()}|${height}|${most}|${paints.value}|${language.value}`;

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const made = new uPlot(options(element.clientWidth, height, lines, most, setAt), dataOf(times, lines), element);
    plot.current = made;
    const sizes = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => {
    plot.current?.setData(dataOf(times, lines));
  }, [times, ...lines.map((line) => line.values)]);

  const shown = at ?? lastKnown(lines);
  const shownAt = times[shown];
  return (
    <figure class="chart" style={{ margin: 0 }}>
      <figcaption class="chart-keys">
        {lines.map((line) => (
          <span key={line.label}>
            <i style={{ background: `var(--${line.colour})` }} />
            {line.label} {latest || at !== null ? <b>{number(line.values[shown], 1) + unit}</b> : null}
          </span>
        ))}
        {at !== null && shownAt ? <span>{clock(shownAt * 1_000, true)}</span> : null}
      </figcaption>
      <div ref={box} role="img" aria-label={label} style={{ height: `${height}px` }} />
    </figure>
  );
}

/** From the first number on: of a cluster that is an hour old, six hours are mostly paper. */
function known(times: (number | null)[], lines: Line[]): { times: (number | null)[]; lines: Line[] } {
  const firsts = lines.map((line) => line.values.findIndex((value) => value !== null)).filter((first) => first >= 0);
  const from = Math.max(0, Math.min(...firsts, times.length - FEWEST));
  if (from === 0 || !firsts.length) return { times, lines };
  return { times: times.slice(from), lines: lines.map((line) => ({ ...line, values: line.values.slice(from) })) };
}

/** The latest moment that has a number: the piece of time that is still going on may have none yet. */
function lastKnown(lines: Line[]): number {
  return Math.max(-1, ...lines.map((line) => line.values.findLastIndex((value) => value !== null)));
}

function dataOf(times: (number | null)[], lines: Line[]): uPlot.AlignedData {
  return [times.map((time) => time ?? 0), ...lines.map((line) => line.values)];
}

function options(width: number, height: number, lines: Line[], most: number | undefined, onCursor: (at: number | null) => void): uPlot.Options {
  const muted = colour("muted");
  const grid = { stroke: colour("line"), width: 1 };
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return {
    width,
    height,
    padding: [8, 24, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 5 } },
    scales: { x: { range: moments }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), most ?? Math.max(1, (high ?? 1) * 1.1)] } },
    axes: [
      { stroke: muted, grid: { show: false }, ticks: { show: false }, font, size: 22, space: 56, values: (made, splits) => timeLabels(splits, (made.scales.x?.max ?? 0) - (made.scales.x?.min ?? 0)) },
      { stroke: muted, grid, ticks: { show: false }, font, size: 38, space: 28, values: (_, splits) => splits.map((split) => number(split, 1)) },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        label: line.label,
        stroke: colour(line.colour),
        width: 1.5,
        points: { show: false },
        spanGaps: false,
        ...(line.dash ? { dash: [4, 3] } : {}),
        ...(line.fill ? { fill: `color-mix(in srgb, ${colour(line.colour)} 16%, transparent)` } : {}),
      })),
    ],
    hooks: { setCursor: [(made) => onCursor(made.cursor.idx ?? null)] },
  };
}

/** Of a single moment, uPlot passes a span of 1,000 days. */
function moments(_: uPlot, first: number | null, last: number | null): [number, number] {
  if (first === null || last === null) return [Date.now() / 1_000 - LEAST_S, Date.now() / 1_000];
  return last - first >= SPAN_OF_ONE_S ? [first - LEAST_S, first] : [first, last];
}

function timeLabels(splits: number[], span: number): string[] {
  return splits.map((split) => (span > 36 * 3_600 ? day(split * 1_000, language.value) : clock(split * 1_000, span < 180)));
}
