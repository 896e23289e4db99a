// Calls on the REST API. Whatever goes wrong comes out as one kind of error, with the server's own words.
import { signal } from "@preact/signals";
import type { Problem } from "./types";

/** This browser has no access, or no longer: the login stands in place of the views. */
export const signedOut = signal(false);

export class ApiError extends Error {
  readonly problem: Problem;

  constructor(problem: Problem) {
    super(problem.detail || problem.title);
    this.problem = problem;
  }
}

type Query = Record<string, string | number | boolean | null | undefined>;

export function path(base: string, query: Query = {}): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") given.set(name, String(value));
  }
  const text = given.toString();
  return text ? `${base}?${text}` : base;
}

export function get<T>(base: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return call<T>("GET", path(base, query), undefined, signal);
}

export function post<T>(url: string, body: unknown = {}, signal?: AbortSignal): Promise<T> {
  return call<T>("POST", url, body, signal);
}

export function put<T>(url: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return call<T>("PUT", url, body, signal);
}

export function del<T>(url: string): Promise<T> {
  return call<T>("DELETE", url);
}

async function call<T>(method: string, url: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(url, {
      method,
      credentials: "same-origin",
      ...(signal ? { signal } : {}),
      ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }),
    });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError(unreachable());
  }
  if (!answer.ok) throw new ApiError(await problemOf(answer));
  if (answer.status === 204) return undefined as T;
  return (await answer.json()) as T;
}

export async function problemOf(answer: Response): Promise<Problem> {
  if (answer.status === 401) signedOut.value = true;
  try {
    const told = (await answer.json()) as Partial<Problem>;
    if (typeof told.detail === "string") {
      return { title: "", code: "", ...told, detail: told.detail, status: answer.status };
    }
  } catch {
    // not JSON: something between us and the scheduler answered
  }
  return { status: answer.status, title: answer.statusText, detail: `HTTP ${answer.status}`, code: "http_error" };
}

export function asProblem(error: unknown): Problem {
  if (error instanceof ApiError) return error.problem;
  const detail = error instanceof Error ? error.message : String(error);
  return { status: 0, title: "", detail, code: "page_error" };
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

function unreachable(): Problem {
  return { status: 0, title: "", detail: "", code: "unreachable" };
}
