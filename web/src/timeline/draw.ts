// Paints the part of the Gantt chart that is in view.
import { clock, day, type Language } from "../format";
import { colour } from "../theme";
import { ticks, xOf, type Bar, type Placed, type Range } from "./scale";

export const AXIS = 26;
export const HUES = ["blue", "green", "violet", "orange", "pink", "sand"];

export interface Lane {
  label: string;
  node: string;
  gpu: string; // empty: the expected start of a waiting task
  first: boolean; // of its node
  expected?: { bar: Bar; until: number; reserved: { gpus: string[]; at: number } | null };
}

export interface Scene {
  lanes: Lane[];
  bars: Map<string, Placed[]>;
  reserved: Map<string, { bar: Bar; at: number }[]>; // by GPU: for tasks that wait
  range: Range;
  now: number;
  width: number;
  height: number; // of the window
  top: number; // scrolled by
  label: number;
  lane: number;
  language: Language;
  hues: Map<string, number>; // of tenants
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
  bar: Bar;
  expected: boolean;
}

/** Draws, and returns what lies where. */
export function drawScene(pen: CanvasRenderingContext2D, scene: Scene): Box[] {
  const paint = { line: colour("line"), muted: colour("muted"), text: colour("text"), surface: colour("surface"), red: colour("red"), accent: colour("blue"), light: getComputedStyle(document.documentElement).colorScheme === "light", hues: HUES.map(colour) };
  const font = getComputedStyle(document.body).fontFamily;
  const boxes: Box[] = [];
  const plot = scene.width - scene.label;
  pen.clearRect(0, 0, scene.width, scene.height);
  pen.font = `11px ${font}`;
  pen.textBaseline = "middle";
  pen.save();
  pen.beginPath();
  pen.rect(scene.label, AXIS, plot, scene.height - AXIS);
  pen.clip();
  const zone = -new Date(scene.range.to).getTimezoneOffset();
  const marks = ticks(scene.range, plot, zone);
  for (const mark of marks) {
    pen.fillStyle = paint.line;
    pen.globalAlpha = mark.isDay ? 1 : 0.55;
    pen.fillRect(Math.round(scene.label + xOf(mark.at, scene.range, plot)), AXIS, 1, scene.height);
  }
  pen.globalAlpha = 1;
  const first = Math.max(0, Math.floor(scene.top / scene.lane));
  const last = Math.min(scene.lanes.length, Math.ceil((scene.top + scene.height) / scene.lane));
  for (let at = first; at < last; at++) drawLane(pen, scene, at, plot, paint, boxes);
  const nowX = scene.label + xOf(scene.now, scene.range, plot);
  pen.fillStyle = paint.red;
  pen.fillRect(nowX, AXIS, 1.5, scene.height);
  pen.restore();
  drawLabels(pen, scene, first, last, paint);
  drawAxis(pen, scene, marks, plot, paint);
  return boxes;
}

type Colours = { line: string; muted: string; text: string; surface: string; red: string; accent: string; light: boolean; hues: string[] };

function drawLane(pen: CanvasRenderingContext2D, scene: Scene, at: number, plot: number, paint: Colours, boxes: Box[]): void {
  const lane = scene.lanes[at];
  if (!lane) return;
  const y = AXIS + at * scene.lane - scene.top;
  if (lane.first && at > 0) {
    pen.fillStyle = paint.line;
    pen.fillRect(scene.label, y, plot, 1);
  }
  if (lane.expected) {
    const { bar, until } = lane.expected;
    const shortest = bar.start + (scene.range.to - scene.range.from) * 0.03;
    const box = boxOf(scene, plot, bar.start, Math.max(until, shortest), y + 1.5, scene.lane - 3);
    hatch(pen, box, hueFor(scene, paint, bar));
    boxes.push({ ...box, bar, expected: true });
    return;
  }
  const shortest = (scene.range.to - scene.range.from) * 0.03;
  for (const { bar, at: from } of scene.reserved.get(lane.gpu) ?? []) {
    const box = boxOf(scene, plot, from, from + shortest, y + 1.5, scene.lane - 3);
    hatch(pen, box, hueFor(scene, paint, bar));
    boxes.push({ ...box, bar: { ...bar, start: from }, expected: true });
  }
  for (const { bar, row, rows } of scene.bars.get(lane.gpu) ?? []) {
    const height = (scene.lane - 2) / rows;
    const box = boxOf(scene, plot, bar.start, bar.end ?? scene.now, y + 1 + row * height, Math.max(1.5, height - (rows > 1 ? 0.5 : 0)));
    if (box.x > scene.width || box.x + box.width < scene.label) continue;
    drawBar(pen, box, bar, hueFor(scene, paint, bar), paint, scene.label);
    boxes.push({ ...box, bar, expected: false });
  }
}

function boxOf(scene: Scene, plot: number, from: number, to: number, y: number, height: number) {
  const x = scene.label + xOf(from, scene.range, plot);
  return { x, y, width: Math.max(1.5, scene.label + xOf(to, scene.range, plot) - x - 0.5), height };
}

function hueFor(scene: Scene, paint: Colours, bar: Bar): string {
  return paint.hues[scene.hues.get(bar.tenant_id) ?? 0] ?? paint.accent;
}

function drawBar(pen: CanvasRenderingContext2D, box: { x: number; y: number; width: number; height: number }, bar: Bar, hue: string, paint: Colours, label: number): void {
  const faded = bar.status === "cancelled" || bar.status === "requeued";
  pen.globalAlpha = faded ? 0.45 : bar.status === "running" ? 1 : 0.75;
  pen.fillStyle = hue;
  pen.fillRect(box.x, box.y, box.width, box.height);
  pen.globalAlpha = 1;
  if (bar.status === "failed") {
    // a notch at the end: told by shape, not by colour alone
    pen.fillStyle = paint.red;
    pen.fillRect(box.x + Math.max(0, box.width - 4), box.y, Math.min(4, box.width), box.height);
  }
  if (box.height >= 11 && box.width > 46) {
    const x = Math.max(box.x, label);
    pen.save();
    pen.beginPath();
    pen.rect(x, box.y, box.x + box.width - x - 4, box.height);
    pen.clip();
    // what shines through changes which text can be read on it
    pen.fillStyle = paint.light && bar.status !== "running" ? paint.text : paint.surface;
    pen.fillText(bar.name || bar.task_id, x + 5, box.y + box.height / 2 + 0.5);
    pen.restore();
  }
}

function hatch(pen: CanvasRenderingContext2D, box: { x: number; y: number; width: number; height: number }, hue: string): void {
  pen.save();
  pen.beginPath();
  pen.rect(box.x, box.y, box.width, box.height);
  pen.clip();
  pen.strokeStyle = hue;
  pen.lineWidth = 1.5;
  pen.beginPath();
  const left = Math.max(-20, box.x);
  for (let x = left - box.height; x < Math.min(box.x + box.width, 10_000); x += 6) {
    pen.moveTo(x, box.y + box.height);
    pen.lineTo(x + box.height, box.y);
  }
  pen.stroke();
  pen.restore();
  pen.strokeStyle = hue;
  pen.lineWidth = 1;
  pen.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1);
}

function drawLabels(pen: CanvasRenderingContext2D, scene: Scene, first: number, last: number, paint: Colours): void {
  pen.fillStyle = paint.surface;
  pen.fillRect(0, AXIS, scene.label, scene.height);
  for (let at = first; at < last; at++) {
    const lane = scene.lanes[at];
    if (!lane) continue;
    const y = AXIS + at * scene.lane - scene.top + scene.lane / 2 + 0.5;
    if (lane.first) {
      pen.fillStyle = paint.text;
      pen.fillText(cut(pen, lane.node, scene.label - 34), 2, y);
    }
    if (scene.lane >= 12) {
      pen.fillStyle = paint.muted;
      pen.textAlign = "right";
      pen.fillText(lane.label, scene.label - 8, y);
      pen.textAlign = "left";
    }
  }
}

function cut(pen: CanvasRenderingContext2D, text: string, width: number): string {
  let shown = text;
  while (shown.length > 1 && pen.measureText(shown).width > width) shown = shown.slice(1);
  return shown === text ? text : `…${shown.slice(1)}`;
}

function drawAxis(pen: CanvasRenderingContext2D, scene: Scene, marks: { at: number; isDay: boolean }[], plot: number, paint: Colours): void {
  pen.fillStyle = paint.surface;
  pen.fillRect(0, 0, scene.width, AXIS);
  pen.fillStyle = paint.line;
  pen.fillRect(0, AXIS - 1, scene.width, 1);
  pen.textAlign = "center";
  for (const mark of marks) {
    const x = scene.label + xOf(mark.at, scene.range, plot);
    if (x < scene.label + 16 || x > scene.width - 16) continue;
    pen.fillStyle = mark.isDay ? paint.text : paint.muted;
    pen.fillText(mark.isDay ? day(mark.at, scene.language) : clock(mark.at), x, AXIS / 2);
  }
  pen.textAlign = "left";
}
