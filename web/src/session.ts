// A one-time address carries a code behind the #. It is taken out of the address bar before anything else happens.
import { post } from "./api";

export async function redeemCode(): Promise<void> {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    await post("/api/v1/session", { code });
  } catch {
    // used or expired: whoever needs no code goes on, everybody else is told by the first refused call
  }
}
