// Lines of output on the page. Only as text: nothing of it is ever markup.
import { Component, type ComponentChildren } from "preact";
import { textOf, type Line, type Style } from "./terminal";

const BLOCK = 100;

/** In blocks that are drawn again only when one of their lines changes: new output must not redraw 5,000 lines. */
export function blocks(lines: Line[], dropped: number): ComponentChildren {
  const made: ComponentChildren[] = [];
  for (let at = 0; at < lines.length; ) {
    const number = Math.floor((dropped + at) / BLOCK);
    const end = Math.min(lines.length, (number + 1) * BLOCK - dropped);
    made.push(<Block key={number} lines={lines.slice(at, end)} />);
    at = end;
  }
  return made;
}

class Block extends Component<{ lines: Line[] }> {
  override shouldComponentUpdate(next: { lines: Line[] }): boolean {
    const { lines } = this.props;
    return lines.length !== next.lines.length || lines.some((line, at) => line !== next.lines[at]);
  }

  override render() {
    return <div>{pieces(this.props.lines)}</div>;
  }
}

/** Lines without colours become one text. */
function pieces(lines: Line[]): ComponentChildren[] {
  const made: ComponentChildren[] = [];
  let plain = "";
  lines.forEach((line, at) => {
    if (typeof line === "string") plain += line;
    else {
      for (const run of line) {
        const look = lookOf(run.style);
        if (!look) plain += run.text;
        else {
          made.push(plain, <span {...look}>{run.text}</span>);
          plain = "";
        }
      }
    }
    if (at < lines.length - 1 || !textOf(line)) plain += "\n";
  });
  made.push(plain);
  return made;
}

function lookOf(style: Style): { class: string; style?: Record<string, string> } | null {
  const [fg, bg] = style.inverse ? [style.bg ?? "bg", style.fg ?? "fg"] : [style.fg, style.bg];
  const words = [style.bold && "t-bold", style.dim && "t-dim", style.italic && "t-italic", style.underline && "t-underline", named("t-fg", fg), named("t-bg", bg)].filter(Boolean);
  const own: Record<string, string> = {};
  if (typeof fg === "string" && fg.startsWith("#")) own.color = fg;
  if (typeof bg === "string" && bg.startsWith("#")) own.backgroundColor = bg;
  const isOwn = Object.keys(own).length > 0;
  return words.length || isOwn ? { class: words.join(" "), ...(isOwn ? { style: own } : {}) } : null;
}

function named(prefix: string, colour: number | string | undefined): string {
  return colour === undefined || (typeof colour === "string" && colour.startsWith("#")) ? "" : `${prefix}-${colour}`;
}
