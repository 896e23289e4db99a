// What is wrong now, what was, and who has taken note of it.
import { useEffect, useState } from "preact/hooks";
import { del, get, post } from "../api";
import { board } from "../board/stream";
import { clock, day, exact, number, parseTime, percent } from "../format";
import { alertText, duration, language, t, word } from "../i18n";
import { may } from "../me";
import { now } from "../now";
import { route, setQuery } from "../router";
import type { Alert, AlertList, Silence, SilenceList, TestedTargets } from "../types";
import { useAsked, useThrottled } from "../ui/asked";
import { askBefore } from "../ui/dialog";
import { Empty, nodeAddress, Page, ProblemBox, Segments, Skeleton, State, Time } from "../ui/parts";
import { complain, say } from "../ui/toast";
import { SilenceDialog } from "../alerts/silence";

type Shown = "open" | "firing" | "pending" | "resolved";

export function Alerts() {
  const shown = (route.value.query.get("state") ?? "open") as Shown;
  const asked = useAsked<AlertList>(`alerts ${shown}`, (signal) => get("/api/v1/alerts", { state: shown, limit: 200 }, signal), 10_000);
  const silences = useAsked<SilenceList>("silences", (signal) => get("/api/v1/alerts/silences", {}, signal), 30_000);
  const [silencing, setSilencing] = useState<Alert | null>(null);
  const refresh = useThrottled(() => {
    asked.refresh();
    silences.refresh();
  }, 500);
  const counts = board.value?.alerts;
  useEffect(refresh, [counts?.firing, counts?.pending, counts?.resolved]);
  const told = asked.data;
  const label = (state: Shown, n: number | undefined) => `${t(`alerts.${state}`)}${n === undefined ? "" : ` ${number(n)}`}`;
  return (
    <Page
      title={t("alerts.title")}
      testid="alerts"
      actions={
        <>
          <Segments<Shown>
            label={t("alerts.title")}
            value={shown}
            testid="alert-state"
            options={[
              ["open", label("open", told ? told.firing + told.pending : undefined)],
              ["firing", label("firing", told?.firing)],
              ["pending", label("pending", told?.pending)],
              ["resolved", label("resolved", told?.resolved)],
            ]}
            onChange={(state) => setQuery({ state: state === "open" ? null : state })}
          />
          {may("alert.change") ? (
            <button type="button" onClick={() => void sendTest()} data-testid="alert-test">
              {t("alerts.test")}
            </button>
          ) : null}
        </>
      }
    >
      <div class="stack">
        <section class="card">
          {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
          {!told && !asked.problem ? <Skeleton lines={4} height={44} /> : null}
          {told && told.alerts.length === 0 ? (
            <Empty title={t("alerts.none")}>
              <p>{t("alerts.noneHow")}</p>
            </Empty>
          ) : null}
          <ul class="alerts" data-testid="alert-list">
            {told?.alerts.toSorted((a, b) => urgency(a) - urgency(b)).map((alert) => (
              <Row key={alert.id} alert={alert} refresh={refresh} silence={() => setSilencing(alert)} />
            ))}
          </ul>
          {told?.dropped ? <p class="muted small-print">{t("alerts.dropped", { n: told.dropped })}</p> : null}
        </section>
        {silences.data?.silences.length ? <Silences silences={silences.data.silences} refresh={refresh} /> : null}
      </div>
      {silencing ? (
        <SilenceDialog
          alert={silencing}
          close={() => {
            setSilencing(null);
            refresh();
          }}
        />
      ) : null}
    </Page>
  );
}

/** What is critical stands first; within that, the server's order stays. */
function urgency(alert: Alert): number {
  if (alert.state === "resolved") return 9;
  return ["critical", "warning", "info"].indexOf(alert.severity) + (alert.state === "firing" ? 0 : 4);
}

function Row({ alert, refresh, silence }: { alert: Alert; refresh: () => void; silence: () => void }) {
  const acknowledge = () =>
    askBefore({
      title: t("alerts.acknowledge"),
      text: alertText(alert),
      action: t("alerts.acknowledge"),
      input: t("alerts.comment"),
      run: async (comment) => {
        await post(`/api/v1/alerts/${alert.id}/acknowledge`, comment ? { comment } : {});
        refresh();
      },
    });
  const node = typeof alert.facts.node === "string" ? alert.facts.node : null;
  return (
    <li data-testid={alert.id} data-state={alert.state}>
      <div class="alert-main">
        <div class="row">
          <State group="severity" value={alert.severity} />
          <b>{word("rule", alert.rule)}</b>
          {alert.state === "firing" ? null : <span class="chip">{word("alerts", alert.state)}</span>}
          {alert.flaps ? <span class="muted">{t("alerts.flaps", { n: alert.flaps })}</span> : null}
        </div>
        <p>{alertText(alert)}</p>
        <p class="row muted">
          {alert.resolved_at ? <Labelled words={t("alerts.resolvedAt", { time: "" })} at={alert.resolved_at} /> : <Labelled words={t("alerts.since", { time: "" })} at={alert.firing_since ?? alert.pending_since} />}
          {alert.acknowledged_at ? <Labelled words={t("alerts.acknowledged", { time: "" })} at={alert.acknowledged_at} /> : null}
          {alert.silenced_until ? <Until text="alerts.silenced" at={alert.silenced_until} /> : null}
          {alert.comment ? <span>“{alert.comment}”</span> : null}
          {node ? <a href={nodeAddress(node)}>{node}</a> : <span>{alert.subject}</span>}
          <span>{factsOf(alert)}</span>
        </p>
      </div>
      {alert.state === "resolved" || !may("alert.change") ? null : (
        <div class="row">
          <button type="button" disabled={alert.acknowledged_at !== null} onClick={acknowledge} data-testid={`ack-${alert.id}`}>
            {t("alerts.acknowledge")}
          </button>
          <button type="button" onClick={silence} data-testid={`silence-${alert.id}`}>
            {t("alerts.silence")}
          </button>
        </div>
      )}
    </li>
  );
}

function Labelled({ words, at }: { words: string; at: string }) {
  return (
    <span>
      {words.trim()} <Time at={at} />
    </span>
  );
}

/** An end is easier to grasp as a time of day. */
function Until({ text, at }: { text: "alerts.silenced" | "alerts.until"; at: string }) {
  const ms = parseTime(at) ?? 0;
  const far = ms - now.value > 20 * 3_600_000;
  return <span title={exact(ms, language.value)}>{t(text, { time: `${far ? `${day(ms, language.value)} ` : ""}${clock(ms)}` })}</span>;
}

function factsOf(alert: Alert): string {
  return Object.entries(alert.facts)
    .filter(([name, value]) => !["node", "gpu"].includes(name) && ["string", "number"].includes(typeof value) && !String(value).endsWith("Z"))
    .map(([name, value]) => (name === "percent" && typeof value === "number" ? percent(value) : `${name.replaceAll("_", " ")} ${typeof value === "number" ? number(value, 2) : String(value)}`))
    .join(" · ");
}

function Silences({ silences, refresh }: { silences: Silence[]; refresh: () => void }) {
  const end = (silence: Silence) => void del(`/api/v1/alerts/silences/${silence.id}`).then(refresh, complain);
  return (
    <section class="card" aria-label={t("alerts.silences")}>
      <header>
        <h2>{t("alerts.silences")}</h2>
      </header>
      <ul class="alerts">
        {silences.map((silence) => (
          <li key={silence.id}>
            <div class="alert-main">
              <b>{silence.subject ? t("alerts.onlySubject", { rule: word("rule", silence.rule), subject: silence.subject }) : t("alerts.wholeRule", { rule: word("rule", silence.rule) })}</b>
              <p class="muted">
                <Until text="alerts.until" at={silence.until} /> {silence.comment}
              </p>
            </div>
            {may("alert.change") ? (
              <button type="button" onClick={() => end(silence)}>
                {t("alerts.unsilence")}
              </button>
            ) : null}
          </li>
        ))}
      </ul>
    </section>
  );
}

async function sendTest(): Promise<void> {
  try {
    const { targets } = await post<TestedTargets>("/api/v1/alerts/test");
    if (!targets.length) say(t("alerts.testNone"));
    for (const target of targets) {
      const words = `${target.name}: ${target.ok ? t("alerts.testOk") : t("alerts.testBad")}, ${target.detail} (${duration(target.seconds * 1_000)})`;
      if (target.ok) say(words);
      else complain(new Error(words));
    }
  } catch (error) {
    complain(error);
  }
}
