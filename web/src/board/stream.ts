// One stream for the whole page. It is lost when it says so or when it falls silent; then it is opened anew, for ever.
import { batch, signal } from "@preact/signals";
import { ApiError, get } from "../api";
import { delayMs } from "./backoff";
import type { Board, Delta } from "../types";
import { applyDelta } from "./board";

const SILENCE_MS = 15_000; // the server speaks at least every 5 s
const HIDDEN_MS = 60_000; // a tab that nobody sees gives its connection back

export type Link = "connecting" | "live" | "lost" | "locked";

export const board = signal<Board | null>(null);
export const link = signal<Link>("connecting");
export const retryAt = signal(0); // when the next try is made, in ms; 0: now
export const seenAt = signal(0); // when the stream last spoke
export const clockSkewMs = signal(0); // the server's clock minus ours
export const updated = signal(false); // another version of dgpu serves than the one that this page came from
let servedBy: string | null = null;

type Listener = (numbers: number[], more: boolean) => void;
const listeners = new Set<Listener>();

let source: EventSource | null = null;
let failures = 0;
let watchdog = 0;
let retry = 0;
let hiding = 0;

/** Told of tasks that changed; `more`: there were others, too. */
export function onTasks(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function openStream(): void {
  connect();
  document.addEventListener("visibilitychange", () => {
    window.clearTimeout(hiding);
    if (document.hidden) hiding = window.setTimeout(pause, HIDDEN_MS);
    else if (!source) reconnectNow();
  });
  window.addEventListener("online", reconnectNow);
}

export function reconnectNow(): void {
  if (source && link.value === "live") return;
  failures = 0;
  connect();
}

function connect(): void {
  close();
  retryAt.value = 0;
  const opened = new EventSource("/api/v1/board/stream");
  source = opened;
  opened.addEventListener("snapshot", (event) => onSnapshot(parse<Board>(event)));
  opened.addEventListener("delta", (event) => onDelta(parse<Delta>(event)));
  opened.onerror = () => {
    if (source === opened) lose();
  };
  listen();
}

function parse<T>(event: Event): T {
  return JSON.parse((event as MessageEvent<string>).data) as T;
}

function onSnapshot(told: Board): void {
  heard(told.at_ms);
  const known = board.value !== null;
  const server = `${told.version} ${told.build}`;
  servedBy ??= server;
  updated.value = servedBy !== server;
  board.value = told;
  if (known) tell([], true); // anything may have happened meanwhile
}

function onDelta(delta: Delta): void {
  const next = board.value && applyDelta(board.value, delta);
  if (!next) {
    connect(); // a beat is missing: a fresh connection begins with a snapshot
    return;
  }
  heard(delta.at_ms);
  board.value = next;
  if (delta.changed?.length || delta.changed_more) tell(delta.changed ?? [], delta.changed_more ?? false);
}

function heard(atMs: number): void {
  failures = 0;
  batch(() => {
    link.value = "live";
    seenAt.value = Date.now();
    clockSkewMs.value = atMs - Date.now();
  });
  listen();
}

function tell(numbers: number[], more: boolean): void {
  for (const listener of listeners) listener(numbers, more);
}

function listen(): void {
  window.clearTimeout(watchdog);
  watchdog = window.setTimeout(lose, SILENCE_MS);
}

function lose(): void {
  close();
  if (link.value !== "locked") link.value = "lost";
  const wait = delayMs(failures++);
  retryAt.value = Date.now() + wait;
  retry = window.setTimeout(connect, wait);
  void probe();
}

/** An event source does not tell why it failed: ask whether it is a matter of access. */
async function probe(): Promise<void> {
  try {
    await get("/api/v1/session");
    if (link.value === "locked") link.value = "lost";
  } catch (error) {
    if (error instanceof ApiError && error.problem.status === 401) link.value = "locked";
  }
}

function pause(): void {
  close();
}

function close(): void {
  window.clearTimeout(watchdog);
  window.clearTimeout(retry);
  source?.close();
  source = null;
}
