// What a view asks the server for: kept while it is asked again, so that nothing jumps.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { asProblem, isAbort } from "../api";
import type { Problem } from "../types";

export interface Asked<T> {
  data: T | null;
  problem: Problem | null;
  refresh: () => void;
}

/** Asks when `key` changes, on refresh, and every so often while the page is seen. An empty key asks nothing. */
export function useAsked<T>(key: string, ask: (signal: AbortSignal) => Promise<T>, everyMs = 0): Asked<T> {
  const [state, setState] = useState<{ key: string; data: T | null; problem: Problem | null }>({ key, data: null, problem: null });
  const latest = useRef(ask);
  latest.current = ask;
  const running = useRef<AbortController | null>(null);
  const again = useRef(false);

  const refresh = useCallback(() => {
    if (!key) return;
    if (running.current) {
      again.current = true; // one more after this one: the answer under way may be older than the reason to ask
      return;
    }
    const controller = new AbortController();
    running.current = controller;
    latest
      .current(controller.signal)
      .then((data) => setState({ key, data, problem: null }))
      .catch((error: unknown) => {
        if (!isAbort(error)) setState((old) => ({ key, data: old.key === key ? old.data : null, problem: asProblem(error) }));
      })
      .finally(() => {
        if (running.current !== controller) return;
        running.current = null;
        if (again.current) {
          again.current = false;
          refresh();
        }
      });
  }, [key]);

  useEffect(() => {
    refresh();
    const timer = everyMs > 0 ? window.setInterval(() => !document.hidden && refresh(), everyMs) : 0;
    return () => {
      window.clearInterval(timer);
      running.current?.abort();
      running.current = null;
      again.current = false;
    };
  }, [refresh, everyMs]);

  const fresh = state.key === key;
  return { data: fresh ? state.data : null, problem: fresh ? state.problem : null, refresh };
}

/** Calls at most once in `everyMs`, and never forgets the last call. */
export function useThrottled(call: () => void, everyMs: number): () => void {
  const timer = useRef(0);
  const lastAt = useRef(0);
  const latest = useRef(call);
  latest.current = call;
  useEffect(() => () => window.clearTimeout(timer.current), []);
  return useCallback(() => {
    if (timer.current) return;
    const wait = Math.max(0, lastAt.current + everyMs - Date.now());
    timer.current = window.setTimeout(() => {
      timer.current = 0;
      lastAt.current = Date.now();
      latest.current();
    }, wait);
  }, [everyMs]);
}
