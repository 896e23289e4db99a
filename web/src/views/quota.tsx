// How the GPUs are divided between the pools. A change shows what it does before it is made.
import { useEffect, useState } from "preact/hooks";
import { asProblem, isAbort, post, put } from "../api";
import { board } from "../board/stream";
import { number, percent } from "../format";
import { t, word } from "../i18n";
import { may } from "../me";
import type { Board, Problem, QuotaEffect, Whatif } from "../types";
import { Meter, Page, ProblemBox, Segments, Skeleton, TaskLink } from "../ui/parts";
import { say } from "../ui/toast";

const MAX_SHOWN = 12;

interface Change {
  online_percent?: number;
  mode?: string;
  reclaim?: string;
}

export function Quota() {
  const known = board.value;
  return (
    <Page title={t("quota.title")} testid="quota">
      {known ? <Editor board={known} /> : <Skeleton height={260} />}
    </Page>
  );
}

function Editor({ board: known }: { board: Board }) {
  const now = known.quota;
  const [wanted, setWanted] = useState<Change>({});
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const percentNow = Math.round(now.online_percent * 100);
  const shown = wanted.online_percent === undefined ? percentNow : Math.round(wanted.online_percent * 100);
  const change: Change = {
    ...(shown !== percentNow ? { online_percent: shown / 100 } : {}),
    ...(wanted.mode && wanted.mode !== now.mode ? { mode: wanted.mode } : {}),
    ...(wanted.reclaim && wanted.reclaim !== now.reclaim ? { reclaim: wanted.reclaim } : {}),
  };
  const changed = Object.keys(change).length > 0;
  const preview = usePreview(changed ? JSON.stringify(change) : "");
  const set = (next: Change) => {
    setWanted({ ...wanted, ...next });
    setProblem(null);
  };
  const apply = () => {
    setBusy(true);
    put("/api/v1/quota", change)
      .then(() => {
        say(t("quota.applied"));
        setWanted({});
      })
      .catch((error: unknown) => setProblem(asProblem(error)))
      .finally(() => setBusy(false));
  };
  const stops = preview.effect?.stops.length ?? 0;
  const refused = preview.problem ?? preview.effect?.rejected ?? null;
  return (
    <div class="submit">
      <section class="card stack">
        <div class="thirds">
          {["online", "batch"].map((name) => {
            const pool = known.pools[name];
            const after = preview.effect?.[name as "online"];
            if (!pool) return null;
            const use = t("cluster.poolUse", { used: number(pool.used, 1), quota: number(pool.quota, 1) });
            return (
              <div key={name} class="pool">
                <h2>{word("pool", name)}</h2>
                <Meter value={pool.used} most={pool.quota} label={use} />
                <span>
                  {use}
                  {after && after.quota !== pool.quota ? <b> → {number(after.quota, 1)}</b> : null}
                </span>
                <small class="muted">
                  {t("cluster.poolWaiting", { n: number(pool.waiting) })}
                  {pool.borrowed ? ` · ${t("cluster.borrowed", { n: number(pool.borrowed, 1) })}` : ""}
                </small>
              </div>
            );
          })}
        </div>
        {may("tenant.change") ? (
          <>
            <div class="field">
              <label for="quota-online">{t("quota.slider")}</label>
              <div class="row">
                <input id="quota-online" class="slider" type="range" min={0} max={100} step={1} value={shown} onInput={(event) => set({ online_percent: Number(event.currentTarget.value) / 100 })} data-testid="quota-slider" />
                <output for="quota-online" class="slider-value">
                  {percent(shown / 100)}
                </output>
              </div>
              <div class="split" aria-hidden="true">
                <i style={{ width: `${shown}%` }}>{t("quota.online")}</i>
                <b>{t("quota.batch")}</b>
              </div>
            </div>
            <div class="field">
              <span class="label">{t("quota.mode")}</span>
              <Segments
                label={t("quota.mode")}
                value={wanted.mode ?? now.mode}
                options={[
                  ["strict", "strict"],
                  ["borrow", "borrow"],
                ]}
                onChange={(mode) => set({ mode })}
              />
              <span class="hint">{word("quota", wanted.mode ?? now.mode)}</span>
            </div>
            <div class="field">
              <span class="label">{t("quota.reclaim")}</span>
              <Segments
                label={t("quota.reclaim")}
                value={wanted.reclaim ?? now.reclaim}
                options={[
                  ["wait", "wait"],
                  ["stop", "stop"],
                ]}
                onChange={(reclaim) => set({ reclaim })}
              />
              <span class="hint">{word("quota", wanted.reclaim ?? now.reclaim)}</span>
            </div>
            {problem ? <ProblemBox problem={problem} /> : null}
            <footer class="row">
              <button type="button" class={stops ? "danger" : "primary"} disabled={!changed || busy || preview.asking || refused !== null} onClick={apply} data-testid="quota-apply">
                {stops ? t("quota.applyStops", { n: stops }) : t("quota.apply")}
              </button>
              <button type="button" disabled={!changed} onClick={() => setWanted({})}>
                {t("quota.reset")}
              </button>
            </footer>
          </>
        ) : (
          <p class="muted" data-testid="quota-fixed">{t("quota.fixed", { online: percent(now.online_percent), mode: now.mode, reclaim: now.reclaim })}</p>
        )}
      </section>
      {may("tenant.change") ? (
        <section class="card verdict" aria-live="polite" aria-label={t("quota.preview")} data-testid="quota-preview">
          <header>
            <h2>{t("quota.preview")}</h2>
            {preview.asking ? <span class="muted">{t("submit.checking")}</span> : null}
          </header>
          {!changed ? <p class="muted">{t("quota.noChange")}</p> : null}
          {changed && refused ? <ProblemBox problem={refused} /> : null}
          {changed && preview.effect && !refused ? <Effect effect={preview.effect} delays={preview.delays} before={known.pools.online?.quota ?? 0} /> : null}
        </section>
      ) : null}
    </div>
  );
}

interface Preview {
  asking: boolean;
  effect: QuotaEffect | null;
  delays: string[];
  problem: Problem | null;
}

const NOTHING: Preview = { asking: false, effect: null, delays: [], problem: null };

/** The scheduler's own dry run, and the forecast of who would start later. */
function usePreview(change: string): Preview {
  const [preview, setPreview] = useState(NOTHING);
  useEffect(() => {
    if (!change) {
      setPreview(NOTHING);
      return;
    }
    const controller = new AbortController();
    setPreview((old) => ({ ...old, asking: true }));
    const timer = window.setTimeout(async () => {
      try {
        const body = JSON.parse(change) as Change;
        const effect = await put<QuotaEffect>("/api/v1/quota?dry_run=true", body, controller.signal);
        setPreview({ asking: false, effect, delays: [], problem: null });
        if (effect.rejected) return;
        const whatif = await post<Whatif>("/api/v1/whatif", { quota: body }, controller.signal).catch(() => null);
        if (whatif && !controller.signal.aborted) setPreview({ asking: false, effect, delays: whatif.delays.map((delay) => delay.task_id), problem: null });
      } catch (error) {
        if (!isAbort(error)) setPreview({ ...NOTHING, problem: asProblem(error) });
      }
    }, 250);
    return () => {
      window.clearTimeout(timer);
      controller.abort();
    };
  }, [change]);
  return preview;
}

function Effect({ effect, delays, before }: { effect: QuotaEffect; delays: string[]; before: number }) {
  const parts: [string, string[]][] = [
    ["starts", effect.starts],
    ["waits", effect.waits],
    ["delays", delays],
    ["drains", effect.drains],
    ["stops", effect.stops],
  ];
  const any = parts.some(([, ids]) => ids.length);
  return (
    <div class="stack">
      {effect.online.quota !== before ? <p>{t("quota.changed", { before: number(before, 1), after: number(effect.online.quota, 1) })}</p> : null}
      {any ? null : <p class="note good">{t("quota.same")}</p>}
      {parts.map(([name, ids]) =>
        ids.length ? (
          <div key={name} class={name === "starts" ? "note good" : "note wait"} data-testid={`effect-${name}`}>
            <b>{number(ids.length)}</b> {word("quota", name)}
            <div class="ids">
              {ids.slice(0, MAX_SHOWN).map((id) => (
                <TaskLink key={id} id={id} />
              ))}
              {ids.length > MAX_SHOWN ? <span class="muted">{t("common.more", { n: ids.length - MAX_SHOWN })}</span> : null}
            </div>
          </div>
        ) : null,
      )}
    </div>
  );
}
