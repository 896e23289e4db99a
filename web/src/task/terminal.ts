// One line of output as a terminal shows it: colours, carriage returns, backspaces. Everything else that a terminal
// would obey (titles, links, clearing the screen, hidden text) is left out: output may come from anybody. Pure.

export const MAX_LINE = 4_000; // characters

/** A number is one of the sixteen colours of a terminal, a text is `#rrggbb`. */
export interface Style {
  readonly fg?: number | string | undefined;
  readonly bg?: number | string | undefined;
  readonly bold?: boolean | undefined;
  readonly dim?: boolean | undefined;
  readonly italic?: boolean | undefined;
  readonly underline?: boolean | undefined;
  readonly inverse?: boolean | undefined;
}

export interface Run {
  text: string;
  style: Style;
}

/** A line without colours is a plain text: most are. */
export type Line = string | readonly Run[];

export const PLAIN: Style = {};
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/;
const TOKEN = new RegExp(
  [
    "\\u001b\\[([0-?]*)[ -/]*([@-~])", // CSI: colours and movements
    "\\u001b\\][^\\u0007\\u001b]*(?:\\u0007|\\u001b\\\\)?", // OSC: titles, links
    "\\u001b[PX^_][^\\u001b]*(?:\\u001b\\\\)?", // other texts for the terminal
    "\\u001b[ -/]*[0-~]?",
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f]",
  ].join("|"),
  "g",
);

export function textOf(line: Line): string {
  return typeof line === "string" ? line : line.map((run) => run.text).join("");
}

/** The line and the style after it, with which the next line begins. */
export function render(raw: string, style: Style): { line: Line; style: Style } {
  if (style === PLAIN && !CONTROL.test(raw)) return { line: raw.slice(0, MAX_LINE), style };
  const cells = new Cells(style);
  let from = 0;
  for (const found of raw.matchAll(TOKEN)) {
    cells.write(raw.slice(from, found.index));
    from = found.index + found[0].length;
    if (found[2]) cells.control(found[2], found[1] ?? "");
    else if (found[0] === "\r") cells.at = 0;
    else if (found[0] === "\b") cells.at = Math.max(0, cells.at - 1);
  }
  cells.write(raw.slice(from));
  return { line: cells.line(), style: cells.style };
}

class Cells {
  private signs: string[] = [];
  private styles: Style[] = [];
  at = 0;

  constructor(public style: Style) {}

  write(text: string): void {
    for (const sign of text) {
      if (this.at >= MAX_LINE) return;
      while (this.signs.length < this.at) this.put(this.signs.length, " ", PLAIN);
      this.put(this.at++, sign, this.style);
    }
  }

  control(order: string, given: string): void {
    const number = Math.min(MAX_LINE, Number.parseInt(given, 10) || 0);
    if (order === "m") this.style = styled(this.style, given);
    else if (order === "G") this.at = Math.max(0, number - 1);
    else if (order === "C") this.at = Math.min(MAX_LINE, this.at + Math.max(1, number));
    else if (order === "D") this.at = Math.max(0, this.at - Math.max(1, number));
    else if (order === "K") this.erase(number);
  }

  line(): Line {
    const runs: Run[] = [];
    this.signs.forEach((sign, at) => {
      const style = this.styles[at] ?? PLAIN;
      const last = runs.at(-1);
      if (last?.style === style) last.text += sign;
      else runs.push({ text: sign, style });
    });
    return runs.every((run) => run.style === PLAIN) ? runs.map((run) => run.text).join("") : runs;
  }

  private put(at: number, sign: string, style: Style): void {
    this.signs[at] = sign;
    this.styles[at] = style;
  }

  private erase(which: number): void {
    if (which === 0 || which === 2) this.signs.length = Math.min(this.signs.length, this.at);
    if (which === 1 || which === 2) for (let at = 0; at < Math.min(this.at, this.signs.length); at++) this.put(at, " ", PLAIN);
  }
}

function styled(style: Style, given: string): Style {
  const codes = given.split(/[;:]/).map((code) => Number.parseInt(code, 10) || 0);
  let next: Style = style;
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at] ?? 0;
    if (code === 38 || code === 48) {
      const [colour, used] = palette(codes, at + 1);
      at += used;
      next = { ...next, [code === 38 ? "fg" : "bg"]: colour };
    } else next = one(next, code);
  }
  return isPlain(next) ? PLAIN : next;
}

/** Blinking and hidden text stay as they are: what a task prints can be read. */
function one(style: Style, code: number): Style {
  if (code >= 30 && code <= 37) return { ...style, fg: code - 30 };
  if (code >= 90 && code <= 97) return { ...style, fg: code - 82 };
  if (code >= 40 && code <= 47) return { ...style, bg: code - 40 };
  if (code >= 100 && code <= 107) return { ...style, bg: code - 92 };
  const changed = CHANGES[code];
  return code === 0 ? PLAIN : changed ? { ...style, ...changed } : style;
}

const CHANGES: Record<number, Style> = {
  1: { bold: true },
  2: { dim: true },
  3: { italic: true },
  4: { underline: true },
  7: { inverse: true },
  22: { bold: false, dim: false },
  23: { italic: false },
  24: { underline: false },
  27: { inverse: false },
  39: { fg: undefined },
  49: { bg: undefined },
};

function isPlain(style: Style): boolean {
  return Object.values(style).every((value) => value === undefined || value === false);
}

/** 5;N of 256 colours, 2;R;G;B; the number of codes that it took. */
function palette(codes: number[], at: number): [number | string | undefined, number] {
  const [kind, first = 0, green = 0, blue = 0] = codes.slice(at, at + 4);
  if (kind === 2) return [hex(first, green, blue), 4];
  if (kind !== 5) return [undefined, 1];
  if (first < 16) return [first, 2];
  if (first >= 232) return [hex(...three(8 + (first - 232) * 10)), 2];
  const cube = first - 16;
  const level = (value: number) => (value ? 55 + value * 40 : 0);
  return [hex(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6)), 2];
}

function three(value: number): [number, number, number] {
  return [value, value, value];
}

function hex(...parts: [number, number, number]): string {
  return `#${parts.map((part) => Math.max(0, Math.min(255, part)).toString(16).padStart(2, "0")).join("")}`;
}
