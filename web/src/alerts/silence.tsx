// Silence an alert, or a whole rule, for a while.
import { useState } from "preact/hooks";
import { asProblem, post } from "../api";
import { duration, t, word } from "../i18n";
import type { Alert, Problem } from "../types";
import { Dialog } from "../ui/dialog";
import { ProblemBox } from "../ui/parts";

const HOURS = [1, 4, 24, 168];

export function SilenceDialog({ alert, close }: { alert: Alert; close: () => void }) {
  const [hours, setHours] = useState(1);
  const [whole, setWhole] = useState(false);
  const [comment, setComment] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const rule = word("rule", alert.rule);
  const send = (event: Event) => {
    event.preventDefault();
    const body = { rule: alert.rule, ...(whole ? {} : { subject: alert.subject }), seconds: hours * 3_600, ...(comment ? { comment } : {}) };
    post("/api/v1/alerts/silences", body).then(close, (error: unknown) => setProblem(asProblem(error)));
  };
  return (
    <Dialog label={t("alerts.silence")} onClose={close} testid="silence-dialog">
      <form onSubmit={send}>
        <h2>{t("alerts.silence")}</h2>
        <div class="field">
          <label for="silence-scope">{t("alerts.scope")}</label>
          <select id="silence-scope" value={whole ? "rule" : "subject"} onChange={(event) => setWhole(event.currentTarget.value === "rule")}>
            <option value="subject">{t("alerts.onlySubject", { rule, subject: alert.subject })}</option>
            <option value="rule">{t("alerts.wholeRule", { rule })}</option>
          </select>
        </div>
        <div class="field">
          <label for="silence-hours">{t("alerts.for")}</label>
          <select id="silence-hours" value={hours} onChange={(event) => setHours(Number(event.currentTarget.value))}>
            {HOURS.map((each) => (
              <option key={each} value={each}>
                {duration(each * 3_600_000)}
              </option>
            ))}
          </select>
        </div>
        <div class="field">
          <label for="silence-comment">{t("alerts.comment")}</label>
          <input id="silence-comment" value={comment} maxLength={200} onInput={(event) => setComment(event.currentTarget.value)} />
        </div>
        {problem ? <ProblemBox problem={problem} /> : null}
        <footer>
          <button type="button" onClick={close}>
            {t("common.cancel")}
          </button>
          <button type="submit" class="primary" data-testid="silence-send">
            {t("alerts.silence")}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
