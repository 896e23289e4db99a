// Secrets of tenants: their names, and who set them. A value goes in and never comes out.
import { useState } from "preact/hooks";
import { del, get } from "../api";
import { number } from "../format";
import { t } from "../i18n";
import { may } from "../me";
import { SetSecretDialog, secretPath } from "../secrets/set";
import type { Secret, SecretList } from "../types";
import { useAsked } from "../ui/asked";
import { askBefore } from "../ui/dialog";
import { List, type Column } from "../ui/list";
import { Page, Time } from "../ui/parts";
import { TenantNames } from "../ui/tenants";
import { say } from "../ui/toast";

export function Secrets() {
  const asked = useAsked<SecretList>("secrets", (signal) => get("/api/v1/secrets", {}, signal), 15_000);
  const [setting, setSetting] = useState<Secret | "new" | null>(null);
  const done = (secret: Secret) => {
    setSetting(null);
    say(t("secrets.isSet", { name: secret.name, version: secret.version }));
    asked.refresh();
  };
  return (
    <Page
      title={t("secrets.title")}
      testid="secrets"
      actions={
        may("secret.change") ? (
          <button type="button" class="primary" onClick={() => setSetting("new")} data-testid="secret-new">
            {t("secrets.new")}
          </button>
        ) : null
      }
    >
      <p class="muted page-note">{t("secrets.what")}</p>
      <List
        asked={asked}
        rowsOf={(data) => data.secrets}
        columns={columns(asked.refresh, setSetting)}
        id={(secret) => `${secret.tenant_id}-${secret.name}`}
        testid="secret"
        empty={{ title: t("secrets.empty"), how: t("secrets.emptyHow"), command: "dgpu secret set HF_TOKEN" }}
      />
      {setting ? <SetSecretDialog secret={setting === "new" ? null : setting} close={() => setSetting(null)} done={done} /> : null}
    </Page>
  );
}

function columns(refresh: () => void, set: (secret: Secret) => void): Column<Secret>[] {
  return [
    { head: t("secrets.name"), cell: (secret) => <span class="mono">{secret.name}</span> },
    { head: t("secrets.tenant"), cell: (secret) => <TenantNames names={[secret.tenant_id]} /> },
    { head: t("secrets.version"), cell: (secret) => number(secret.version), kind: "num" },
    { head: t("secrets.by"), cell: (secret) => secret.set_by, kind: "wide-only" },
    { head: t("secrets.at"), cell: (secret) => <Time at={secret.set_at} />, kind: "wide-only" },
    { head: t("nodes.orders"), cell: (secret) => <Orders secret={secret} refresh={refresh} set={set} />, kind: "actions" },
  ];
}

function Orders({ secret, refresh, set }: { secret: Secret; refresh: () => void; set: (secret: Secret) => void }) {
  if (!may("secret.change")) return null;
  const remove = () =>
    askBefore({
      title: t("secrets.deleteAsk", { name: secret.name }),
      text: t("secrets.deleteWhat", { tenant: secret.tenant_id }),
      action: t("secrets.delete"),
      danger: true,
      run: async () => {
        await del(secretPath(secret.tenant_id, secret.name));
        say(t("secrets.deleted", { name: secret.name }));
        refresh();
      },
    });
  const testid = `${secret.tenant_id}-${secret.name}`;
  return (
    <span class="row orders">
      <button type="button" onClick={() => set(secret)} data-testid={`replace-${testid}`}>
        {t("secrets.replace")}
      </button>
      <button type="button" class="danger" onClick={remove} data-testid={`delete-${testid}`}>
        {t("secrets.delete")}
      </button>
    </span>
  );
}
