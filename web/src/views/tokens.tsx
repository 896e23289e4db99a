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
import { CopyLine, Empty, Page, ProblemBox, Skeleton, Time } from "../ui/parts";
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
  const tokens = asked.data?.tokens.toReversed() ?? [];
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
      <section class="card">
        {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
        {!asked.data && !asked.problem ? <Skeleton lines={5} height={26} /> : null}
        {asked.data && !tokens.length ? (
          <Empty title={t("tokens.empty")}>
            <p>{t("tokens.emptyHow")}</p>
            <CopyLine text="dgpu token create laptop --user ann --tenant vision" />
          </Empty>
        ) : null}
        {tokens.length ? <Table tokens={tokens} refresh={asked.refresh} /> : null}
      </section>
      {asking ? <NewTokenDialog close={() => setAsking(false)} done={done} /> : null}
      {made ? <ShownOnce token={made} close={() => setMade(null)} /> : null}
    </Page>
  );
}

function Table({ tokens, refresh }: { tokens: Token[]; refresh: () => void }) {
  return (
    <div class="table-wrap">
      <table data-testid="token-table">
        <thead>
          <tr>
            <th>{t("tokens.name")}</th>
            <th>{t("account.user")}</th>
            <th class="wide-only">{t("account.role")}</th>
            <th class="wide-only">{t("account.tenants")}</th>
            <th class="wide-only">{t("account.scopes")}</th>
            <th>{t("tokens.expires")}</th>
            <th class="wide-only">{t("tokens.used")}</th>
            <th class="wide-only">{t("tokens.by")}</th>
            <th>
              <span class="hidden-text">{t("nodes.orders")}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {tokens.map((token) => (
            <Row key={token.id} token={token} refresh={refresh} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ token, refresh }: { token: Token; refresh: () => void }) {
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
  const expired = token.expires_at !== null && (parseTime(token.expires_at) ?? 0) <= now.value;
  return (
    <tr class={token.revoked || expired ? "muted" : ""} data-testid={`token-${token.id}`}>
      <td>
        {token.name} <small class="muted mono">{token.id}</small>
      </td>
      <td>{token.user}</td>
      <td class="wide-only">{word("role", token.role)}</td>
      <td class="wide-only">
        <TenantNames names={token.tenants} />
      </td>
      <td class="wide-only">{token.scopes.join(", ") || t("tokens.allActions")}</td>
      <td>{token.expires_at ? <Time at={token.expires_at} /> : t("tokens.never")}</td>
      <td class="wide-only">
        <Time at={token.last_used_at} />
      </td>
      <td class="wide-only">{token.created_by}</td>
      <td class="num">
        {token.revoked ? (
          <span class="chip">{t("tokens.isRevoked")}</span>
        ) : expired ? (
          <span class="chip">{t("tokens.isExpired")}</span>
        ) : may("token.change") ? (
          <button type="button" class="danger" onClick={revoke} data-testid={`revoke-${token.id}`}>
            {t("tokens.revoke")}
          </button>
        ) : null}
      </td>
    </tr>
  );
}
