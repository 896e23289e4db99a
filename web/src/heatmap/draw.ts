// Paints the map. Lightness alone carries the value, shape carries the state: nothing depends on telling hues apart.
import { colour } from "../theme";
import type { Board } from "../types";
import { cornerOf, type Layout } from "./layout";

export type Measure = "util" | "memory" | "temp";
const STEPS = 32;
const NUMBERED = 36; // pixels of a cell that has room for a number

export interface Paint {
  ramp: string[];
  line: string;
  fill: string;
  surface: string;
  muted: string;
  text: string;
  red: string;
  orange: string;
  font: string;
}

export function paintOf(): Paint {
  const stops = [0, 1, 2, 3, 4].map((step) => rgb(colour(`heat-${step}`)));
  const ramp = Array.from({ length: STEPS + 1 }, (_, step) => mixed(stops, step / STEPS));
  const [line, fill, surface, muted, text, red, orange] = ["line", "fill", "surface", "muted", "text", "red", "orange"].map(colour) as [string, string, string, string, string, string, string];
  return { ramp, line, fill, surface, muted, text, red, orange, font: getComputedStyle(document.body).fontFamily };
}

function rgb(hex: string): [number, number, number] {
  const value = Number.parseInt(hex.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

function mixed(stops: [number, number, number][], part: number): string {
  const place = Math.min(stops.length - 1.0001, part * (stops.length - 1));
  const from = stops[Math.floor(place)] ?? [0, 0, 0];
  const to = stops[Math.floor(place) + 1] ?? from;
  const at = place % 1;
  return `rgb(${from.map((value, channel) => Math.round(value + ((to[channel] ?? 0) - value) * at)).join(" ")})`;
}

/** 0 to 1, or null where nothing is measured. */
/** The state in the legend for GPUs with a task whose use is not known. They must not look idle. */
export const UNMEASURED = "unmeasured";

export function isUnmeasured(board: Board, place: number, measure: Measure): boolean {
  return board.statuses[board.gpus.status[place] ?? 0] === "busy" && valueOf(board, place, measure) === null;
}

export function valueOf(board: Board, place: number, measure: Measure): number | null {
  const g = board.gpus;
  if (measure === "util") return part(g.util[place], 100);
  if (measure === "temp") {
    const temp = g.temp[place];
    return temp === null || temp === undefined ? null : Math.max(0, Math.min(1, (temp - 25) / 65));
  }
  const used = g.mem_used[place];
  const total = g.mem_total[place] ?? 0;
  const reserved = g.mem_reserved[place] ?? 0;
  if (!total || (!reserved && (used === null || used === undefined))) return null;
  return Math.min(1, Math.max(used ?? 0, reserved) / total);
}

function part(value: number | null | undefined, most: number): number | null {
  return value === null || value === undefined ? null : Math.max(0, Math.min(1, value / most));
}

const LARGE_PX = 12;

/** Pixels of the widest name, at the larger size: letters differ too much to count them. */
export function widestOf(names: string[], paint: Paint): number {
  const pen = document.createElement("canvas").getContext("2d");
  if (!pen) return 0;
  pen.font = `${LARGE_PX}px ${paint.font}`;
  return names.reduce((most, name) => Math.max(most, pen.measureText(name).width), 0);
}

export function draw(pen: CanvasRenderingContext2D, board: Board, visible: number[], layout: Layout, measure: Measure, paint: Paint): void {
  pen.clearRect(0, 0, layout.width, layout.height);
  pen.textBaseline = "middle";
  pen.font = `${layout.cell > 16 ? LARGE_PX : 11}px ${paint.font}`;
  visible.forEach((node, at) => {
    if (layout.label) drawName(pen, board, node, at, layout, paint);
    const first = board.nodes.first[node] ?? 0;
    const gpus = board.nodes.gpus[node] ?? 0;
    for (let gpu = 0; gpu < gpus; gpu++) {
      const { x, y } = cornerOf(layout, at, gpu);
      drawCell(pen, board, first + gpu, x, y, layout.cell, measure, paint);
    }
  });
}

function drawName(pen: CanvasRenderingContext2D, board: Board, node: number, at: number, layout: Layout, paint: Paint): void {
  const { x, y } = cornerOf(layout, at, 0);
  const ready = board.node_statuses[board.nodes.status[node] ?? 0] === "ready";
  pen.fillStyle = ready ? paint.text : paint.muted;
  pen.fillText(shortened(pen, board.nodes.id[node] ?? "", layout.label - 10), x - layout.label, y + layout.cell / 2 + 1);
}

function shortened(pen: CanvasRenderingContext2D, text: string, width: number): string {
  if (pen.measureText(text).width <= width) return text;
  // the end of a node's name tells it from its neighbours
  let cut = text;
  while (cut.length > 1 && pen.measureText(`…${cut}`).width > width) cut = cut.slice(1);
  return `…${cut}`;
}

function drawCell(pen: CanvasRenderingContext2D, board: Board, place: number, x: number, y: number, cell: number, measure: Measure, paint: Paint): void {
  const status = board.statuses[board.gpus.status[place] ?? 0];
  const value = valueOf(board, place, measure);
  const empty = status === "offline" || status === "error" || value === null || (measure === "util" && status === "idle");
  if (empty) {
    pen.fillStyle = status === "error" ? paint.surface : paint.fill;
    pen.fillRect(x, y, cell, cell);
    if (cell > 8) {
      pen.strokeStyle = status === "error" ? paint.red : paint.line;
      pen.lineWidth = 1;
      pen.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
    }
  } else {
    pen.fillStyle = paint.ramp[Math.round(value * STEPS)] ?? paint.fill;
    pen.fillRect(x, y, cell, cell);
  }
  if (cell >= NUMBERED && !empty) drawNumber(pen, value, measure, board.gpus.temp[place] ?? 0, x, y, cell, paint);
  if (isUnmeasured(board, place, measure)) drawGlyph(pen, UNMEASURED, x, y, cell, paint);
  else if (status !== "idle" && status !== "busy") drawGlyph(pen, status ?? "", x, y, cell, paint);
}

/** Where there is room, the value itself. Light on dark or dark on light, whatever can be read. */
function drawNumber(pen: CanvasRenderingContext2D, value: number, measure: Measure, temp: number, x: number, y: number, cell: number, paint: Paint): void {
  pen.fillStyle = value > 0.55 ? paint.surface : paint.text;
  pen.textAlign = "center";
  pen.fillText(String(measure === "temp" ? temp : Math.round(value * 100)), x + cell / 2, y + cell / 2 + 1);
  pen.textAlign = "left";
}

export function drawGlyph(pen: CanvasRenderingContext2D, status: string, x: number, y: number, cell: number, paint: Paint): void {
  const edge = cell > 10 ? cell * 0.28 : 1;
  pen.lineWidth = Math.min(3, Math.max(1.4, cell / 9));
  pen.beginPath();
  if (status === "error") {
    pen.strokeStyle = paint.red;
    pen.moveTo(x + edge, y + edge);
    pen.lineTo(x + cell - edge, y + cell - edge);
    pen.moveTo(x + cell - edge, y + edge);
    pen.lineTo(x + edge, y + cell - edge);
    pen.stroke();
  } else if (status === "unconfirmed") {
    pen.strokeStyle = paint.orange;
    pen.arc(x + cell / 2, y + cell / 2, Math.max(1.5, cell / 5), 0, 7);
    pen.stroke();
  } else if (status === "offline") {
    pen.strokeStyle = paint.muted;
    pen.moveTo(x + edge, y + cell - edge);
    pen.lineTo(x + cell - edge, y + edge);
    pen.stroke();
  } else if (status === "draining") {
    pen.fillStyle = paint.orange;
    pen.moveTo(x, y);
    pen.lineTo(x + Math.max(5, cell * 0.55), y);
    pen.lineTo(x, y + Math.max(5, cell * 0.55));
    pen.fill();
  } else if (status === UNMEASURED) {
    pen.save();
    pen.fillStyle = paint.text;
    pen.font = `${Math.max(6, Math.min(LARGE_PX, cell * 0.8))}px ${paint.font}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText("?", x + cell / 2, y + cell / 2 + 1);
    pen.restore();
  } else if (status === "reserved") {
    pen.fillStyle = paint.muted;
    pen.arc(x + cell / 2, y + cell / 2, Math.max(1.5, cell / 6), 0, 7);
    pen.fill();
  }
}
