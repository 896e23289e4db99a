// Who the viewer is, and how to stop being it.
import { useState } from "preact/hooks";
import { t, word } from "../i18n";
import { may, me, signOut } from "../me";
import { Dialog } from "./dialog";
import { TenantNames } from "./tenants";
import { complain } from "./toast";

export function Account() {
  const [open, setOpen] = useState(false);
  const who = me.value;
  if (!who) return null;
  return (
    <>
      <button type="button" class="plain account" onClick={() => setOpen(true)} title={`${who.user}, ${word("role", who.role)}`} aria-label={t("account.of", { user: who.user })} data-testid="account">
        <i aria-hidden="true" data-letter={[...who.user][0]?.toUpperCase() ?? "?"} />
        <span>{who.user}</span>
      </button>
      {open ? <Details close={() => setOpen(false)} /> : null}
    </>
  );
}

function Details({ close }: { close: () => void }) {
  const who = me.value;
  if (!who) return null;
  const rows: [string, preact.ComponentChildren][] = [
    [t("account.user"), who.user],
    [t("account.role"), word("role", who.role)],
    [t("account.tenants"), <TenantNames names={who.tenants} />],
    [t("account.source"), word("source", who.source)],
    ...(who.token_id ? [[t("account.token"), <code>{who.token_id}</code>] as [string, preact.ComponentChildren]] : []),
    ...(who.scopes.length ? [[t("account.scopes"), who.scopes.join(", ")] as [string, preact.ComponentChildren]] : []),
  ];
  return (
    <Dialog label={t("account.title")} onClose={close} testid="account-dialog">
      <div class="inner">
        <h2>{t("account.title")}</h2>
        <dl class="facts">
          {rows.map(([name, value]) => (
            <>
              <dt key={name}>{name}</dt>
              <dd>{value}</dd>
            </>
          ))}
        </dl>
        <footer>
          {may("token.read") ? (
            <a class="button" href="/tokens" onClick={close}>
              {t("nav.tokens")}
            </a>
          ) : null}
          {may("secret.read") ? (
            <a class="button" href="/secrets" onClick={close}>
              {t("nav.secrets")}
            </a>
          ) : null}
          <a class="button" href="/login" onClick={close} data-testid="sign-in-other">
            {t("account.other")}
          </a>
          {who.source === "session" ? (
            <button type="button" class="primary" onClick={() => void signOut().catch(complain)} data-testid="sign-out">
              {t("account.signOut")}
            </button>
          ) : null}
          <button type="button" onClick={close}>
            {t("common.close")}
          </button>
        </footer>
      </div>
    </Dialog>
  );
}
