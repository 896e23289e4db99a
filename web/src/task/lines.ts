// Output of a task as lines: pieces come cut anywhere, progress bars overwrite themselves. Bounded.
import { clock, parseTime } from "../format";
import { MAX_LINE, PLAIN, render, textOf, type Line, type Style } from "./terminal";

export const MAX_LINES = 5_000;
const TIME_LENGTH = "2026-01-02T03:04:05.678Z".length;
const TIME: Style = { dim: true };

export class Lines {
  private done: Line[] = [];
  private rest = "";
  private style: Style = PLAIN;
  dropped = 0;

  /** `timed`: the scheduler puts the time before each line. */
  constructor(private readonly timed = false) {}

  push(piece: string): void {
    const parts = (this.rest + piece).split("\n");
    this.rest = parts.pop() ?? "";
    if (this.rest.length > 4 * MAX_LINE) this.rest = this.rest.slice(-MAX_LINE); // a line without an end
    for (const part of parts) {
      const { line, style } = this.rendered(part);
      this.done.push(line);
      this.style = style;
    }
    const surplus = this.done.length - MAX_LINES;
    if (surplus > 0) {
      this.done.splice(0, surplus);
      this.dropped += surplus;
    }
  }

  all(): Line[] {
    return this.rest ? [...this.done, this.rendered(this.rest).line] : this.done.slice();
  }

  /** The time is apart from the line: a carriage return must not overwrite it. */
  private rendered(raw: string): { line: Line; style: Style } {
    if (!this.timed) return render(raw, this.style);
    const at = parseTime(raw.slice(0, TIME_LENGTH).trim());
    const { line, style } = render(raw.slice(TIME_LENGTH + 1), this.style);
    const runs = typeof line === "string" ? [{ text: line, style: PLAIN }] : line;
    return { line: [{ text: `${at === null ? "--:--:--" : clock(at, true)} `, style: TIME }, ...runs], style };
  }
}

/** The lines that hold a text, with their numbers. */
export function found(lines: Line[], text: string): { number: number; line: string }[] {
  const wanted = text.toLowerCase();
  return lines.flatMap((line, at) => (textOf(line).toLowerCase().includes(wanted) ? [{ number: at + 1, line: textOf(line) }] : []));
}
