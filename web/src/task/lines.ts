// Output of a task as lines: pieces come cut anywhere, progress bars overwrite themselves, colours are left out. Bounded.

export const MAX_LINES = 5_000;
const MAX_LINE = 4_000; // characters
// colours and cursor movements of terminals, titles of windows
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-_])/g;

export class Lines {
  private done: string[] = [];
  private rest = "";
  dropped = 0;

  push(piece: string): void {
    const parts = (this.rest + piece).split("\n");
    this.rest = parts.pop() ?? "";
    if (this.rest.length > 4 * MAX_LINE) this.rest = this.rest.slice(-MAX_LINE); // a line without an end
    for (const part of parts) this.done.push(shown(part));
    const surplus = this.done.length - MAX_LINES;
    if (surplus > 0) {
      this.done.splice(0, surplus);
      this.dropped += surplus;
    }
  }

  all(): string[] {
    return this.rest ? [...this.done, shown(this.rest)] : this.done.slice();
  }
}

function shown(line: string): string {
  const plain = line.replace(ESCAPES, "").replace(/\r+$/, "");
  const overwritten = plain.lastIndexOf("\r");
  return (overwritten < 0 ? plain : plain.slice(overwritten + 1)).slice(0, MAX_LINE);
}

/** The lines that hold a text, with their numbers. */
export function found(lines: string[], text: string): { number: number; line: string }[] {
  const wanted = text.toLowerCase();
  return lines.flatMap((line, at) => (line.toLowerCase().includes(wanted) ? [{ number: at + 1, line }] : []));
}
