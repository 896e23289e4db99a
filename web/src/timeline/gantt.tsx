// The chart itself: a canvas as large as the window, that draws what is in view.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock, exact } from "../format";
import { duration, language, t, told, word } from "../i18n";
import { go } from "../router";
import { paints } from "../theme";
import { reservedOf } from "./data";
import { AXIS, drawScene, type Box, type Lane } from "./draw";
import { bounded, byGpu, panned, timeAt, zoomed, type Bar, type Range } from "./scale";

interface Props {
  lanes: Lane[];
  bars: Bar[];
  range: Range;
  now: number;
  hues: Map<string, number>;
  onRange: (range: Range) => void;
  onVisible: (first: number, last: number) => void;
}

const LABEL = 112;
const MAX_HEIGHT = 620;

export function Gantt({ lanes, bars, range, now, hues, onRange, onVisible }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const boxes = useRef<Box[]>([]);
  const drag = useRef<{ x: number; range: Range; moved: boolean } | null>(null);
  const [width, setWidth] = useState(0);
  const [top, setTop] = useState(0);
  const [tip, setTip] = useState<{ box: Box; x: number; y: number } | null>(null);
  const lane = lanes.length <= 72 ? 18 : lanes.length <= 400 ? 13 : 9;
  const whole = AXIS + lanes.length * lane;
  const height = Math.min(MAX_HEIGHT, whole + 4);
  const label = width < 560 ? 96 : LABEL;
  const plot = Math.max(1, width - label);
  const byCard = useMemo(() => byGpu(bars, now), [bars]);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => setWidth(element.clientWidth);
    measure();
    const sizes = new ResizeObserver(measure);
    sizes.observe(element);
    return () => sizes.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    const pen = element?.getContext("2d");
    if (!pen || !element || !width) return;
    const scale = window.devicePixelRatio || 1;
    element.width = Math.round(width * scale);
    element.height = Math.round(height * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    boxes.current = drawScene(pen, { lanes, bars: byCard, reserved: reservedOf(lanes), range, now, width, height, top, label, lane, language: language.value, hues });
  }, [lanes, byCard, hues, range, now, width, height, top, lane, label, paints.value, language.value]);

  useEffect(() => onVisible(Math.floor(top / lane), Math.ceil((top + height) / lane)), [top, lane, height, lanes.length]);

  // The wheel belongs to the page unless Ctrl is held; a listener that may refuse it cannot be a passive one.
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const onWheel = (event: WheelEvent) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!event.ctrlKey && !sideways && !event.shiftKey) return;
      event.preventDefault();
      if (event.ctrlKey) {
        const x = event.clientX - element.getBoundingClientRect().left - label;
        onRange(bounded(zoomed(range, Math.exp(event.deltaY / 300), timeAt(x, range, plot)), now));
      } else onRange(bounded(panned(range, ((event.deltaX || event.deltaY) / plot) * (range.to - range.from)), now));
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, [range, plot, label, now]);

  const onDown = (event: PointerEvent) => {
    if (event.button === 0) drag.current = { x: event.clientX, range, moved: false };
  };
  const onMove = (event: PointerEvent) => {
    const held = drag.current;
    if (held && event.buttons) {
      const by = event.clientX - held.x;
      if (!held.moved && Math.abs(by) < 4) return;
      held.moved = true;
      canvas.current?.setPointerCapture(event.pointerId);
      setTip(null);
      onRange(bounded(panned(held.range, (-by / plot) * (range.to - range.from)), now));
      return;
    }
    drag.current = null;
    const found = boxAt(event, canvas.current, boxes.current);
    setTip(found ? { box: found, x: event.clientX, y: event.clientY } : null);
  };
  const onUp = (event: PointerEvent) => {
    const held = drag.current;
    drag.current = null;
    if (held?.moved) return;
    const found = boxAt(event, canvas.current, boxes.current);
    if (found) go(`/tasks/${found.bar.task_id}`);
  };
  const onKey = (event: KeyboardEvent) => {
    const middle = (range.from + range.to) / 2;
    const span = range.to - range.from;
    const next = { ArrowLeft: panned(range, -span / 8), ArrowRight: panned(range, span / 8), "+": zoomed(range, 0.7, middle), "=": zoomed(range, 0.7, middle), "-": zoomed(range, 1.4, middle) }[event.key];
    if (!next) return;
    event.preventDefault();
    onRange(bounded(next, now));
  };
  return (
    <div class="gantt" ref={box} style={{ height: `${height}px` }} onScroll={(event) => setTop(event.currentTarget.scrollTop)} data-testid="gantt">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={t("timeline.label", { from: exact(range.from, language.value), to: exact(range.to, language.value) })}
        style={{ width: `${width}px`, height: `${height}px`, cursor: tip ? "pointer" : "grab" }}
        onPointerDown={onDown}
        onPointerMove={onMove}
        onPointerUp={onUp}
        onPointerLeave={() => setTip(null)}
        onKeyDown={onKey}
      />
      <i class="gantt-space" style={{ height: `${Math.max(0, whole - height)}px` }} />
      {tip ? <BarTip box={tip.box} x={tip.x} y={tip.y} now={now} /> : null}
    </div>
  );
}

function boxAt(event: PointerEvent, canvas: HTMLCanvasElement | null, boxes: Box[]): Box | null {
  const edge = canvas?.getBoundingClientRect();
  if (!edge) return null;
  const x = event.clientX - edge.left;
  const y = event.clientY - edge.top;
  if (y < AXIS) return null;
  return boxes.findLast((box) => x >= box.x - 2 && x <= box.x + box.width + 2 && y >= box.y - 1 && y <= box.y + box.height + 1) ?? null;
}

function BarTip({ box, x, y, now }: { box: Box; x: number; y: number; now: number }) {
  const { bar } = box;
  const left = x + 290 > window.innerWidth ? x - 286 : x + 14;
  return (
    <div class="tip" role="tooltip" style={{ left: `${left}px`, top: `${Math.min(y + 14, window.innerHeight - 130)}px` }}>
      <strong>
        {bar.task_id} {bar.name}
      </strong>
      <span class="muted">
        {bar.tenant_id} · {word("pool", bar.pool)}
        {bar.node ? ` · ${bar.node}` : ""}
      </span>
      {box.expected ? (
        <span>
          {t("timeline.expected")} {clock(bar.start)}
        </span>
      ) : (
        <span>
          {word("status", bar.status)} · {clock(bar.start, true)} – {bar.end ? clock(bar.end, true) : "…"} · <b>{duration((bar.end ?? now) - bar.start)}</b>
        </span>
      )}
      {bar.reason ? <span class="muted">{told("ended", bar.reason, {}, bar.reason.replaceAll("_", " "))}</span> : null}
    </div>
  );
}
