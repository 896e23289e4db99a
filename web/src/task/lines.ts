// Output of a task as lines: pieces come cut anywhere, progress bars overwrite themselves. Bounded.
import { MAX_LINE, PLAIN, render, textOf, type Line, type Style } from "./terminal";

export const MAX_LINES = 5_000;

export class Lines {
  private done: Line[] = [];
  private rest = "";
  private style: Style = PLAIN;
  dropped = 0;

  push(piece: string): void {
    const parts = (this.rest + piece).split("\n");
    this.rest = parts.pop() ?? "";
    if (this.rest.length > 4 * MAX_LINE) this.rest = this.rest.slice(-MAX_LINE); // a line without an end
    for (const part of parts) {
      const { line, style } = render(part, this.style);
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
    return this.rest ? [...this.done, render(this.rest, this.style).line] : this.done.slice();
  }
}

/** The lines that hold a text, with their numbers. */
export function found(lines: Line[], text: string): { number: number; line: string }[] {
  const wanted = text.toLowerCase();
  return lines.flatMap((line, at) => (textOf(line).toLowerCase().includes(wanted) ? [{ number: at + 1, line: textOf(line) }] : []));
}
