// The map of all GPUs: one canvas, a tip at the pointer, arrow keys to walk.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { gpuAt } from "../board/board";
import { t, word } from "../i18n";
import { paints } from "../theme";
import type { Board } from "../types";
import { draw, drawGlyph, paintOf, widestOf, type Measure } from "./draw";
import { GpuTip } from "./gpu";
import { cornerOf, hit, layOut } from "./layout";

interface Props {
  board: Board;
  visible: number[]; // nodes
  measure: Measure;
  chosen: number | null; // a GPU
  onChoose: (place: number | null) => void;
}

export function HeatMap({ board, visible, measure, chosen, onChoose }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [tip, setTip] = useState<{ place: number; x: number; y: number } | null>(null);
  const gpusOf = useMemo(() => visible.map((node) => board.nodes.gpus[node] ?? 0), [visible, board.nodes.gpus]);
  const paint = useMemo(paintOf, [paints.value]);
  const widestName = useMemo(() => widestOf(visible.map((node) => board.nodes.id[node] ?? ""), paint), [visible, board.nodes.id, paint]);
  const layout = useMemo(() => layOut(gpusOf, Math.max(200, width), widestName), [gpusOf, width, widestName]);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    setWidth(element.clientWidth);
    const sizes = new ResizeObserver(() => setWidth(element.clientWidth));
    sizes.observe(element);
    return () => sizes.disconnect();
  }, []);

  useEffect(() => {
    const pen = canvas.current?.getContext("2d");
    if (!pen || !canvas.current || !width) return;
    const scale = window.devicePixelRatio || 1;
    const wanted = [Math.round(layout.width * scale), Math.round(layout.height * scale)] as const;
    if (canvas.current.width !== wanted[0] || canvas.current.height !== wanted[1]) [canvas.current.width, canvas.current.height] = wanted;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    draw(pen, board, visible, layout, measure, paint);
  }, [board.gpus, board.nodes, visible, layout, measure, paint, width]);

  const placeAt = (event: MouseEvent): number | null => {
    const edge = canvas.current?.getBoundingClientRect();
    const found = edge && hit(layout, gpusOf, event.clientX - edge.left, event.clientY - edge.top);
    return found ? (board.nodes.first[visible[found.node] ?? 0] ?? 0) + found.gpu : null;
  };
  const onMove = (event: MouseEvent) => {
    const place = placeAt(event);
    setTip(place === null ? null : { place, x: event.clientX, y: event.clientY });
  };
  const onKey = (event: KeyboardEvent) => {
    const next = walked(event.key, chosen, board, visible, layout.columns);
    if (next === undefined) return;
    event.preventDefault();
    onChoose(next);
  };
  const mark = chosen === null ? null : markOf(board, visible, chosen);
  const corner = mark && cornerOf(layout, mark.node, mark.gpu);
  return (
    <div ref={box} class="heatmap" style={{ height: `${layout.height}px` }} data-testid="heatmap">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={t("cluster.mapLabel", { gpus: board.gpus.id.length, nodes: board.nodes.id.length })}
        style={{ width: `${layout.width}px`, height: `${layout.height}px` }}
        onMouseMove={onMove}
        onMouseLeave={() => setTip(null)}
        onClick={(event) => onChoose(placeAt(event))}
        onKeyDown={onKey}
      />
      {corner ? <i class="heatmap-mark" style={{ left: `${corner.x - 2}px`, top: `${corner.y - 2}px`, width: `${layout.cell + 4}px`, height: `${layout.cell + 4}px` }} /> : null}
      {tip ? <GpuTip gpu={gpuAt(board, tip.place)} x={tip.x} y={tip.y} /> : null}
    </div>
  );
}

function markOf(board: Board, visible: number[], place: number): { node: number; gpu: number } | null {
  const owner = board.gpus.node[place] ?? -1;
  const node = visible.indexOf(owner);
  return node < 0 ? null : { node, gpu: place - (board.nodes.first[owner] ?? 0) };
}

/** The GPU that an arrow key leads to; undefined: the key is not one of ours. */
function walked(key: string, chosen: number | null, board: Board, visible: number[], columns: number): number | null | undefined {
  if (key === "Escape") return null;
  const steps: Record<string, [number, number]> = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [columns, 0], ArrowUp: [-columns, 0] };
  const step = steps[key];
  if (!step) return undefined;
  const at = chosen === null ? null : markOf(board, visible, chosen);
  if (!at) return board.nodes.first[visible[0] ?? 0] ?? null;
  let { node, gpu } = { node: at.node + step[0], gpu: at.gpu + step[1] };
  const inNode = board.nodes.gpus[visible[at.node] ?? 0] ?? 0;
  if (gpu >= inNode || gpu < 0) {
    node += gpu < 0 ? -1 : 1;
    gpu = gpu < 0 ? (board.nodes.gpus[visible[node] ?? 0] ?? 1) - 1 : 0;
  }
  const owner = visible[node];
  if (owner === undefined) return chosen;
  return (board.nodes.first[owner] ?? 0) + Math.min(gpu, (board.nodes.gpus[owner] ?? 1) - 1);
}

export function Legend({ measure, states }: { measure: Measure; states: string[] }) {
  const ends: Record<Measure, [string, string]> = { util: ["0", "100 %"], memory: ["0", "100 %"], temp: ["25", "90 °C"] };
  return (
    <div class="legend">
      <span>{ends[measure][0]}</span>
      <i class="legend-ramp" aria-hidden="true" />
      <span>{ends[measure][1]}</span>
      {states.map((state) => (
        <Glyph key={state} state={state} />
      ))}
    </div>
  );
}

function Glyph({ state }: { state: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const pen = canvas.current?.getContext("2d");
    if (!pen) return;
    const paint = paintOf();
    pen.setTransform(2, 0, 0, 2, 0, 0);
    pen.fillStyle = paint.fill;
    pen.fillRect(0, 0, 14, 14);
    pen.strokeStyle = state === "error" ? paint.red : paint.line;
    pen.strokeRect(0.5, 0.5, 13, 13);
    drawGlyph(pen, state, 0, 0, 14, paint);
  }, [state, paints.value]);
  return (
    <span class="legend-state">
      <canvas ref={canvas} width={28} height={28} aria-hidden="true" />
      {word("gpu", state)}
    </span>
  );
}
