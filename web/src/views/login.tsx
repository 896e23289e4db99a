// Signing in. It stands in place of every view while the browser has no access, so that the address stays.
import { useState } from "preact/hooks";
import { asProblem, get, signedOut } from "../api";
import { language, setLanguage, t, word } from "../i18n";
import { goToProvider, me, signIn, signInProblem } from "../me";
import { nextTheme, theme } from "../theme";
import type { SignInMethods } from "../types";
import { useAsked } from "../ui/asked";
import { CopyLine, ProblemBox } from "../ui/parts";
import { Logo } from "../ui/logo";

export function Login() {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const methods = useAsked<SignInMethods>("sign-in methods", (signal) => get("/api/v1/session/methods", {}, signal));
  const provider = methods.data?.oidc;
  const problem = signInProblem.value;
  const run = (work: () => Promise<void>) => {
    setBusy(true);
    signInProblem.value = null;
    work()
      .then(() => setToken(""))
      .catch((error: unknown) => (signInProblem.value = asProblem(error)))
      .finally(() => setBusy(false));
  };
  const send = (event: Event) => {
    event.preventDefault();
    if (token.trim()) run(() => signIn({ token: token.trim() }));
  };
  return (
    <div class="login">
      <main class="card stack" data-testid="view-login">
        <h1 class="row">
          <Logo />
          {t("login.title")}
        </h1>
        {me.value && !signedOut.value ? <p class="muted">{t("login.already", { user: me.value.user })}</p> : null}
        {problem ? <ProblemBox problem={problem} /> : null}
        {provider ? (
          <>
            <button type="button" class="primary large" disabled={busy} onClick={() => run(goToProvider)} data-testid="login-oidc">
              {t("login.with", { name: provider })}
            </button>
            <p class="muted or">{t("login.or")}</p>
          </>
        ) : null}
        <form class="stack" onSubmit={send}>
          <div class="field">
            <label for="login-token">{t("login.token")}</label>
            <input
              id="login-token"
              type="password"
              class="mono"
              value={token}
              maxLength={128}
              autocomplete="off"
              autofocus
              spellcheck={false}
              placeholder="dgpu_…"
              aria-describedby="login-hint"
              onInput={(event) => setToken(event.currentTarget.value)}
              data-testid="login-token"
            />
            <span class="hint" id="login-hint">
              {t("login.tokenHint")}
            </span>
          </div>
          <button type="submit" class={provider ? "large" : "primary large"} disabled={busy || !token.trim()} data-testid="login-send">
            {t("login.send")}
          </button>
        </form>
        <div class="hint stack">
          <span>{t("login.machine")}</span>
          <CopyLine text="dgpu dashboard" />
        </div>
        <footer class="row">
          {me.value && !signedOut.value ? <a href="/">{t("problem.home")}</a> : null}
          <span class="gap" />
          <button type="button" class="plain" onClick={nextTheme} title={t("top.theme", { theme: word("theme", theme.value) })} aria-label={t("top.theme", { theme: word("theme", theme.value) })}>
            {{ system: "◐", light: "○", dark: "●" }[theme.value]}
          </button>
          <button type="button" class="plain" data-testid="language" lang={language.value === "en" ? "zh-CN" : "en"} onClick={() => setLanguage(language.value === "en" ? "zh" : "en")}>
            {t("top.language")}
          </button>
        </footer>
      </main>
    </div>
  );
}
