// A new token. Its secret is in one answer only, so it stays on the page until it is put away.
import { useState } from "preact/hooks";
import { asProblem, post } from "../api";
import { t, word } from "../i18n";
import { me } from "../me";
import type { NewToken, Problem } from "../types";
import { Dialog } from "../ui/dialog";
import { CopyLine, ProblemBox, Time } from "../ui/parts";

const ROLES = ["user", "viewer", "tenant-admin", "operator", "admin"] as const;
const BY_TENANT_ADMIN = ["user", "viewer"];
const OF_ALL_TENANTS = ["operator", "admin"];
const DAYS = [1, 7, 30, 90, 365, 0]; // 0: never
const DAY_S = 86_400;

export function NewTokenDialog({ close, done }: { close: () => void; done: (token: NewToken) => void }) {
  const own = me.value?.tenants.includes("*") ? [] : (me.value?.tenants ?? []);
  const [form, setForm] = useState({ name: "", user: "", role: "user", tenants: own.join(", "), days: 90, scopes: "" });
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const set = (changes: Partial<typeof form>) => setForm({ ...form, ...changes });
  const unbound = OF_ALL_TENANTS.includes(form.role);
  const send = (event: Event) => {
    event.preventDefault();
    const body: Record<string, unknown> = { name: form.name, role: form.role, expires_in_seconds: form.days * DAY_S };
    if (form.user.trim()) body.user = form.user.trim();
    if (!unbound) body.tenants = wordsOf(form.tenants);
    if (wordsOf(form.scopes).length) body.scopes = wordsOf(form.scopes);
    setBusy(true);
    post<NewToken>("/api/v1/tokens", body)
      .then(done)
      .catch((error: unknown) => setProblem(asProblem(error)))
      .finally(() => setBusy(false));
  };
  const roles = me.value?.role === "admin" ? ROLES : ROLES.filter((role) => BY_TENANT_ADMIN.includes(role));
  const line = (name: "name" | "user" | "tenants" | "scopes", hint: string, disabled = false) => (
    <div class="field">
      <label for={`token-${name}`}>{t(`tokens.${name}`)}</label>
      <input id={`token-${name}`} value={form[name]} required={name === "name"} disabled={disabled} autocomplete="off" aria-describedby={`token-${name}-hint`} onInput={(event) => set({ [name]: event.currentTarget.value })} data-testid={`token-${name}`} />
      <span class="hint" id={`token-${name}-hint`}>
        {hint}
      </span>
    </div>
  );
  return (
    <Dialog label={t("tokens.new")} onClose={close} testid="token-dialog">
      <form onSubmit={send}>
        <h2>{t("tokens.new")}</h2>
        {line("name", t("tokens.nameHint"))}
        {line("user", t("tokens.userHint", { user: me.value?.user ?? "" }))}
        <div class="field">
          <label for="token-role">{t("account.role")}</label>
          <select id="token-role" value={form.role} onChange={(event) => set({ role: event.currentTarget.value })} data-testid="token-role">
            {roles.map((role) => (
              <option key={role} value={role}>
                {word("role", role)}
              </option>
            ))}
          </select>
          <span class="hint">{word("roleHint", form.role)}</span>
        </div>
        {line("tenants", unbound ? t("tokens.tenantsAll") : t("tokens.tenantsHint"), unbound)}
        <div class="field">
          <label for="token-days">{t("tokens.expires")}</label>
          <select id="token-days" value={form.days} onChange={(event) => set({ days: Number(event.currentTarget.value) })}>
            {DAYS.map((days) => (
              <option key={days} value={days}>
                {days ? t("tokens.days", { n: days }) : t("tokens.never")}
              </option>
            ))}
          </select>
        </div>
        {line("scopes", t("tokens.scopesHint"))}
        {problem ? <ProblemBox problem={problem} /> : null}
        <footer>
          <button type="button" onClick={close}>
            {t("common.cancel")}
          </button>
          <button type="submit" class="primary" disabled={busy || !form.name.trim()} data-testid="token-send">
            {t("tokens.create")}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

export function ShownOnce({ token, close }: { token: NewToken; close: () => void }) {
  return (
    <Dialog label={t("tokens.made")} onClose={close} testid="token-made">
      <div class="inner">
        <h2>{t("tokens.made")}</h2>
        <p>{t("tokens.madeWhat", { user: token.user })}</p>
        <CopyLine text={token.token} />
        <p class="muted">
          {t("tokens.expires")}: {token.expires_at ? <Time at={token.expires_at} /> : t("tokens.never")}
        </p>
        <footer>
          <button type="button" class="primary" onClick={close} data-testid="token-put-away">
            {t("tokens.putAway")}
          </button>
        </footer>
      </div>
    </Dialog>
  );
}

function wordsOf(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}
