// A one-time address carries a code behind the #. It is taken out of the address bar before anything else happens.
import { asProblem, post } from "./api";
import { signInProblem } from "./me";

export async function redeemCode(): Promise<void> {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    await post("/api/v1/session", { code });
  } catch (error) {
    signInProblem.value = asProblem(error); // shown if the viewer has no other access
  }
}
