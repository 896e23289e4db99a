import { t } from "../i18n";

/** Names of tenants, each with its page. */
export function TenantNames({ names }: { names: string[] }) {
  if (names.includes("*")) return <>{t("account.allTenants")}</>;
  return (
    <span class="row">
      {names.map((name) => (
        <a key={name} href={`/tenants/${encodeURIComponent(name)}`}>
          {name}
        </a>
      ))}
    </span>
  );
}
