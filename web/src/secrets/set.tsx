// A new secret, or a new value of one. The field is write-only: it starts empty, and its content leaves the page with the dialog.
import { useState } from "preact/hooks";
import { asProblem, put } from "../api";
import { t } from "../i18n";
import { me } from "../me";
import type { Problem, Secret } from "../types";
import { Dialog } from "../ui/dialog";
import { ProblemBox } from "../ui/parts";

export function secretPath(tenant: string, name: string): string {
  return `/api/v1/tenants/${encodeURIComponent(tenant)}/secrets/${encodeURIComponent(name)}`;
}

/** `secret`: the one whose value is replaced; null: a new one. */
export function SetSecretDialog({ secret, close, done }: { secret: Secret | null; close: () => void; done: (secret: Secret) => void }) {
  const own = me.value?.tenants.includes("*") ? [] : (me.value?.tenants ?? []);
  const [form, setForm] = useState({ tenant: secret?.tenant_id ?? own[0] ?? "default", name: secret?.name ?? "", value: "" });
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const set = (changes: Partial<typeof form>) => setForm({ ...form, ...changes });
  const send = (event: Event) => {
    event.preventDefault();
    setBusy(true);
    put<Secret>(secretPath(form.tenant.trim(), form.name.trim()), { value: form.value })
      .then(done)
      .catch((error: unknown) => setProblem(asProblem(error)))
      .finally(() => setBusy(false));
  };
  const title = secret ? t("secrets.replaceAsk", { name: secret.name }) : t("secrets.new");
  return (
    <Dialog label={title} onClose={close} testid="secret-dialog">
      <form onSubmit={send} autocomplete="off">
        <h2>{title}</h2>
        {secret ? (
          <p>{t("secrets.replaceWhat")}</p>
        ) : (
          <>
            <div class="field">
              <label for="secret-tenant">{t("secrets.tenant")}</label>
              {own.length ? (
                <select id="secret-tenant" value={form.tenant} onChange={(event) => set({ tenant: event.currentTarget.value })} data-testid="secret-tenant">
                  {own.map((tenant) => (
                    <option key={tenant} value={tenant}>
                      {tenant}
                    </option>
                  ))}
                </select>
              ) : (
                <input id="secret-tenant" value={form.tenant} required autocomplete="off" onInput={(event) => set({ tenant: event.currentTarget.value })} data-testid="secret-tenant" />
              )}
            </div>
            <div class="field">
              <label for="secret-name">{t("secrets.name")}</label>
              <input id="secret-name" class="mono" value={form.name} required autocomplete="off" spellcheck={false} aria-describedby="secret-name-hint" onInput={(event) => set({ name: event.currentTarget.value })} data-testid="secret-name" />
              <span class="hint" id="secret-name-hint">
                {t("secrets.nameHint")}
              </span>
            </div>
          </>
        )}
        <div class="field">
          <label for="secret-value">{t("secrets.value")}</label>
          <input id="secret-value" type="password" value={form.value} required autocomplete="new-password" spellcheck={false} aria-describedby="secret-value-hint" onInput={(event) => set({ value: event.currentTarget.value })} data-testid="secret-value" />
          <span class="hint" id="secret-value-hint">
            {t("secrets.valueHint")}
          </span>
        </div>
        {problem ? <ProblemBox problem={problem} /> : null}
        <footer>
          <button type="button" onClick={close}>
            {t("common.cancel")}
          </button>
          <button type="submit" class="primary" disabled={busy || !form.name.trim() || !form.tenant.trim() || !form.value} data-testid="secret-send">
            {t("secrets.set")}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
