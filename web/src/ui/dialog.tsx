// Questions before something changes. The browser's own dialog keeps the focus and closes on Esc.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem } from "../api";
import { t } from "../i18n";
import type { Problem } from "../types";
import { ProblemBox } from "./parts";

export function Dialog(props: { label: string; onClose: () => void; wide?: boolean; testid?: string; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    box.current?.showModal();
  }, []);
  return (
    <dialog
      ref={box}
      class={props.wide ? "wide" : ""}
      aria-label={props.label}
      data-testid={props.testid ?? "dialog"}
      onClose={props.onClose}
      onClick={(event) => event.target === box.current && props.onClose()}
    >
      {props.children}
    </dialog>
  );
}

interface Question {
  title: string;
  text: string;
  action: string;
  danger?: boolean;
  count?: number; // of the things that the action would end
  input?: string; // the label of a line of text
  extra?: ComponentChildren;
  run: (text: string) => Promise<void>;
}

const question = signal<Question | null>(null);

export function askBefore(asked: Question): void {
  question.value = asked;
}

export function Confirmation() {
  const asked = question.value;
  return asked ? <Asking key={asked.title} asked={asked} /> : null;
}

function Asking({ asked }: { asked: Question }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const close = () => {
    question.value = null;
  };
  const send = (event: Event) => {
    event.preventDefault();
    setBusy(true);
    asked
      .run(text)
      .then(close)
      .catch((error: unknown) => setProblem(asProblem(error)))
      .finally(() => setBusy(false));
  };
  return (
    <Dialog label={asked.title} onClose={close} testid="confirm">
      <form onSubmit={send}>
        <h2>{asked.title}</h2>
        <p>{asked.text}</p>
        {asked.input ? (
          <div class="field">
            <label for="asked-text">{asked.input}</label>
            <input id="asked-text" value={text} maxLength={200} onInput={(event) => setText(event.currentTarget.value)} />
          </div>
        ) : null}
        {asked.extra}
        {problem ? <ProblemBox problem={problem} /> : null}
        <footer>
          <button type="button" onClick={close} data-testid="confirm-no">
            {asked.danger ? t("common.keep", { n: asked.count ?? 1 }) : t("common.cancel")}
          </button>
          <button type="submit" class={asked.danger ? "danger" : "primary"} disabled={busy} data-testid="confirm-yes">
            {asked.action}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
