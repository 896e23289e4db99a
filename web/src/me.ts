// The viewer: its identity, and the actions that it may do. This one answer drives what the pages offer; the server
// refuses everything else anyway.
import { signal } from "@preact/signals";
import { asProblem, get, post, signedOut } from "./api";
import { reconnectNow } from "./board/stream";
import { go, route } from "./router";
import { isDoneByStandby, isStandby } from "./standing";
import type { Problem, SignInAddress, WhoAmI } from "./types";

const RETRY_MS = 2_000;
const BACK = "dgpu.back"; // where the viewer was before it went to the identity provider

export const me = signal<WhoAmI | null>(null);
export const signInProblem = signal<Problem | null>(null);

export function may(action: string): boolean {
  if (isStandby.value && !isDoneByStandby(action)) return false; // the master would have to do it
  return me.value?.actions.includes(action) ?? false;
}

/** Asks until there is an answer: without it, no page offers any action. */
export async function learn(): Promise<void> {
  try {
    me.value = await get<WhoAmI>("/api/v1/whoami");
    signedOut.value = false;
  } catch (error) {
    if (asProblem(error).status !== 401) window.setTimeout(() => void learn(), RETRY_MS);
  }
}

/** Throws the problem. The page that was open before is shown again. */
export async function signIn(body: unknown): Promise<void> {
  const before = signedOut.value;
  try {
    await post("/api/v1/session", body);
  } catch (error) {
    signedOut.value = before; // a token that is refused here says nothing about the access that this browser has
    throw error;
  }
  signInProblem.value = null;
  await learn();
  reconnectNow();
  if (route.value.view === "login") go(kept(), { replace: true });
}

export async function goToProvider(): Promise<void> {
  const { url } = await post<SignInAddress>("/api/v1/session/oidc");
  try {
    sessionStorage.setItem(BACK, location.pathname === "/login" ? "/" : location.pathname + location.search);
  } catch {
    // storage may be forbidden: the viewer comes back to the first page
  }
  location.assign(url);
}

/** The identity provider sent the browser back: its answer is in the address, and leaves it before anything else. */
export async function comeBack(): Promise<void> {
  const query = new URLSearchParams(location.search);
  const [code, state, error] = ["code", "state", "error"].map((name) => query.get(name));
  if (location.pathname !== "/login" || !(error || (code && state))) return;
  go("/login", { replace: true });
  if (error) {
    const detail = query.get("error_description") ?? error;
    signInProblem.value = { status: 403, code: "provider_refused", title: "", detail: detail.slice(0, 300) };
    return;
  }
  try {
    await signIn({ oidc: { code, state } });
  } catch (failure) {
    signInProblem.value = asProblem(failure);
  }
}

export async function signOut(): Promise<void> {
  await fetch("/api/v1/session", { method: "DELETE", credentials: "same-origin" });
  location.assign("/"); // everything of this viewer leaves the memory of the page
}

/** Only an address of this page: whatever else is in the storage is not followed. */
function kept(): string {
  let found: string | null = null;
  try {
    found = sessionStorage.getItem(BACK);
    sessionStorage.removeItem(BACK);
  } catch {
    // storage may be forbidden
  }
  return found && /^\/(?![/\\])/.test(found) ? found : "/";
}
