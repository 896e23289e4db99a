// API tokens: for whom, what they may do, and their end.
import { useState } from "preact/hooks";
import { del, get } from "../api";
import { t, word } from "../i18n";
import { may } from "../me";
import { now } from "../now";
import { parseTime } from "../format";
import type { NewToken, Token, TokenList } from "../types";
import { NewTokenDialog, ShownOnce } from "../tokens/create";
import { useAsked } from "../ui/asked";
import { askBefore } from "../ui/dialog";
import { List, type Column } from "../ui/list";
import { Page, Time } from "../ui/parts";
import { TenantNames } from "../ui/tenants";
import { say } from "../ui/toast";

export function Tokens() {
  const asked = useAsked<TokenList>("tokens", (signal) => get("/api/v1/tokens", {}, signal), 15_000);
  const [asking, setAsking] = useState(false);
  const [made, setMade] = useState<NewToken | null>(null);
  const done = (token: NewToken) => {
    setAsking(false);
    setMade(token);
    asked.refresh();
  };
  return (
    <Page
      title={t("tokens.title")}
      testid="tokens"
      actions={
        may("token.change") ? (
          <button type="button" class="primary" onClick={() => setAsking(true)} data-testid="token-new">
            {t("tokens.new")}
          </button>
        ) : null
      }
    >
      <List
        asked={asked}
        rowsOf={(data) => data.tokens.toReversed()}
        columns={columns(asked.refresh)}
        id={(token) => token.id}
        testid="token"
        faded={(token) => token.revoked || isExpired(token)}
        empty={{ title: t("tokens.empty"), how: t("tokens.emptyHow"), command: "dgpu token create laptop --user ann --tenant vision" }}
      />
      {asking ? <NewTokenDialog close={() => setAsking(false)} done={done} /> : null}
      {made ? <ShownOnce token={made} close={() => setMade(null)} /> : null}
    </Page>
  );
}

function columns(refresh: () => void): Column<Token>[] {
  return [
    {
      head: t("tokens.name"),
      cell: (token) => (
        <>
          {token.name} <small class="muted mono">{token.id}</small>
        </>
      ),
    },
    { head: t("account.user"), cell: (token) => token.user },
    { head: t("account.role"), cell: (token) => word("role", token.role), kind: "wide-only" },
    { head: t("account.tenants"), cell: (token) => <TenantNames names={token.tenants} />, kind: "wide-only" },
    { head: t("account.scopes"), cell: (token) => token.scopes.join(", ") || t("tokens.allActions"), kind: "wide-only" },
    { head: t("tokens.expires"), cell: (token) => (token.expires_at ? <Time at={token.expires_at} /> : t("tokens.never")) },
    { head: t("tokens.used"), cell: (token) => <Time at={token.last_used_at} />, kind: "wide-only" },
    { head: t("tokens.by"), cell: (token) => token.created_by, kind: "wide-only" },
    { head: t("nodes.orders"), cell: (token) => <Orders token={token} refresh={refresh} />, kind: "actions" },
  ];
}

function isExpired(token: Token): boolean {
  return token.expires_at !== null && (parseTime(token.expires_at) ?? 0) <= now.value;
}

function Orders({ token, refresh }: { token: Token; refresh: () => void }) {
  const revoke = () =>
    askBefore({
      title: t("tokens.revokeAsk", { name: token.name }),
      text: t("tokens.revokeWhat", { user: token.user }),
      action: t("tokens.revoke"),
      danger: true,
      run: async () => {
        await del(`/api/v1/tokens/${encodeURIComponent(token.id)}`);
        say(t("tokens.revoked", { name: token.name }));
        refresh();
      },
    });
  if (token.revoked) return <span class="chip">{t("tokens.isRevoked")}</span>;
  if (isExpired(token)) return <span class="chip">{t("tokens.isExpired")}</span>;
  if (!may("token.change")) return null;
  return (
    <button type="button" class="danger" onClick={revoke} data-testid={`revoke-${token.id}`}>
      {t("tokens.revoke")}
    </button>
  );
}
