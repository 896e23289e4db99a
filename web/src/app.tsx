// The frame around every view: where to go, what is going on, and whether what is shown is still true.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { signedOut } from "./api";
import { board, link, reconnectNow, retryAt, seenAt, updated } from "./board/stream";
import { clock } from "./format";
import { language, setLanguage, t, word, type MessageKey } from "./i18n";
import { helpShown, PLACES, placesOfViewer } from "./keyboard";
import { may, me } from "./me";
import { here } from "./now";
import { go, route } from "./router";
import { addressOf, isStandby, othersOf, standing } from "./standing";
import { nextTheme, theme } from "./theme";
import { Account } from "./ui/account";
import { Boundary } from "./ui/boundary";
import { Confirmation } from "./ui/dialog";
import { Keys } from "./ui/keys";
import { Logo } from "./ui/logo";
import { Empty } from "./ui/parts";
import { Toasts } from "./ui/toast";
import { Alerts } from "./views/alerts";
import { Audit } from "./views/audit";
import { Cluster } from "./views/cluster";
import { Docs } from "./views/docs";
import { Login } from "./views/login";
import { Nodes } from "./views/nodes";
import { Quota } from "./views/quota";
import { Secrets } from "./views/secrets";
import { Services, ServiceView } from "./views/services";
import { Submit } from "./views/submit";
import { TaskView } from "./views/task";
import { Tasks } from "./views/tasks";
import { TenantView } from "./views/tenant";
import { Tenants } from "./views/tenants";
import { Timeline } from "./views/timeline";
import { Tokens } from "./views/tokens";
import { Workers } from "./views/workers";

/** On a phone, the places are behind a button. */
const menuShown = signal(false);

export function App() {
  const title = useRef<HTMLElement>(null);
  const { view, id, query } = route.value;
  useFocusOnHeading(`${view}/${id}/${query.get("node") ?? ""}`);
  useEffect(() => {
    if (view === "submit") {
      document.title = `${t("submit.title")} · dgpu`;
      return;
    }
    const name = view === "docs" || PLACES.some(([, known]) => known === view) ? t(`nav.${view}` as MessageKey) : "";
    document.title = [id || name, "dgpu"].filter(Boolean).join(" · ");
  }, [view, id, language.value]);
  if ((signedOut.value && view !== "docs") || view === "login") return <Login />;
  return (
    <div class={link.value === "lost" ? "shell stale" : "shell"}>
      <a class="skip" href="#main" onClick={() => title.current?.focus()}>
        {t("nav.skip")}
      </a>
      <Side />
      <div>
        <Top />
        <Banner />
        <Updated />
        <main class="page" id="main" tabIndex={-1} ref={title}>
          <Boundary key={`${view}/${id}`}>
            <View />
          </Boundary>
        </main>
      </div>
      {helpShown.value ? <Keys /> : null}
      <Confirmation />
      <Toasts />
    </div>
  );
}

/** After a navigation, the keyboard and a screen reader go on at the heading of the new view. */
function useFocusOnHeading(place: string): void {
  const before = useRef(place);
  useEffect(() => {
    if (before.current === place) return;
    before.current = place;
    menuShown.value = false;
    document.querySelector<HTMLElement>("main h1")?.focus({ preventScroll: true });
  }, [place]);
}

function View() {
  const { view, id } = route.value;
  switch (view) {
    case "cluster":
      return <Cluster />;
    case "tasks":
      return id ? <TaskView key={id} id={id} /> : <Tasks />;
    case "submit":
      return <Submit />;
    case "timeline":
      return <Timeline />;
    case "tenants":
      return id ? <TenantView key={id} id={id} /> : <Tenants />;
    case "quota":
      return <Quota />;
    case "nodes":
      return <Nodes />;
    case "services":
      return id ? <ServiceView key={id} name={id} /> : <Services />;
    case "workers":
      return <Workers />;
    case "tokens":
      return <Tokens />;
    case "secrets":
      return <Secrets />;
    case "alerts":
      return <Alerts />;
    case "audit":
      return <Audit />;
    case "docs":
      return <Docs />;
    default:
      return (
        <Empty title={t("problem.notFound")}>
          <a href="/">{t("problem.home")}</a>
        </Empty>
      );
  }
}

function Side() {
  const { view } = route.value;
  const firing = board.value?.alerts?.firing ?? 0;
  // The board counts the waiting tasks of all tenants: beside the list of own tasks, that number would be wrong.
  const waiting = me.value?.tenants.includes("*") ? (board.value?.counts.waiting ?? 0) : 0;
  return (
    <nav class={menuShown.value ? "side shown" : "side"} aria-label={t("nav.main")}>
      <a class="brand" href="/" aria-label="dgpu">
        <Logo />
        <span>dgpu</span>
      </a>
      <button type="button" class="plain menu" aria-expanded={menuShown.value} aria-controls="places" onClick={() => (menuShown.value = !menuShown.value)} data-testid="menu">
        {t("nav.menu")}
        {firing ? <span class="badge">{firing}</span> : null}
      </button>
      <div class="places" id="places">
        {placesOfViewer().map(([, place]) => (
          <a key={place} href={place === "cluster" ? "/" : `/${place}`} aria-current={view === place ? "page" : undefined} data-testid={`nav-${place}`}>
            <span>{t(`nav.${place}` as MessageKey)}</span>
            {place === "alerts" && firing ? <span class="badge">{firing}</span> : null}
            {place === "tasks" && waiting ? <span class="badge calm">{waiting > 9_999 ? "9999+" : waiting}</span> : null}
          </a>
        ))}
        <a href="/docs" aria-current={view === "docs" ? "page" : undefined} data-testid="nav-docs">
          {t("nav.docs")}
        </a>
      </div>
      <div class="foot">{board.value ? `dgpu ${board.value.version}` : ""}</div>
    </nav>
  );
}

function Top() {
  const search = (event: Event) => {
    event.preventDefault();
    const field = (event.currentTarget as HTMLFormElement).elements.namedItem("q") as HTMLInputElement;
    const text = field.value.trim();
    const found = /^(?:task-)?(\d+)$/.exec(text);
    go(found ? `/tasks/task-${found[1]}` : text ? `/tasks?q=${encodeURIComponent(text)}` : "/tasks");
    field.value = "";
    field.blur();
  };
  const state = link.value === "live" ? "live" : link.value === "connecting" ? "connecting" : "lost";
  return (
    <header class="top">
      <form class="search" role="search" onSubmit={search}>
        <input name="q" type="search" data-search aria-label={t("top.search")} placeholder={t("top.searchShort")} maxLength={100} autocomplete="off" />
        <kbd aria-hidden="true">/</kbd>
      </form>
      <span class="gap" />
      <span class="link-state" role="status" data-testid="link-state" data-state={link.value}>
        <i class={`dot ${state}`} aria-hidden="true" />
        <span>{t(`top.${state}` as MessageKey)}</span>
      </span>
      <button type="button" class="plain keys" onClick={() => (helpShown.value = true)} aria-label={t("top.keys")} title={t("top.keys")}>
        ?
      </button>
      <button type="button" class="plain" data-testid="theme" onClick={nextTheme} title={t("top.theme", { theme: word("theme", theme.value) })} aria-label={t("top.theme", { theme: word("theme", theme.value) })}>
        {{ system: "◐", light: "○", dark: "●" }[theme.value]}
      </button>
      <button type="button" class="plain" data-testid="language" lang={language.value === "en" ? "zh-CN" : "en"} title={t("top.languageLabel")} onClick={() => setLanguage(language.value === "en" ? "zh" : "en")}>
        {t("top.language")}
      </button>
      {may("task.submit") ? (
        <a class="button primary" href="/submit" data-testid="new-task">
          {t("top.submit")}
        </a>
      ) : null}
      <Account />
    </header>
  );
}

function Banner() {
  if (link.value === "lost") {
    const left = Math.ceil((retryAt.value - here.value) / 1_000);
    return (
      <div class="banner bad" data-testid="banner">
        <span role="alert">{seenAt.value ? t("banner.lost", { time: clock(seenAt.value, true) }) : t("problem.unreachable")}</span>
        <span class="muted" aria-hidden="true">{retryAt.value && left > 0 ? t("banner.retry", { seconds: left }) : t("banner.trying")}</span>
        <button type="button" onClick={reconnectNow}>
          {t("banner.now")}
        </button>
        <Others />
      </div>
    );
  }
  const known = board.value;
  if (known && isStandby.value) return <Standby />;
  if (known && !known.ready) return <div class="banner">{t("banner.notReady")}</div>;
  if (known && known.isolation === "open") return <div class="banner">{t("banner.open")}</div>;
  if (known && known.isolation === "none") return <div class="banner">{t("banner.noBoundary")}</div>;
  return null;
}

function Standby() {
  const told = standing.value;
  const master = addressOf(told?.master ?? "");
  const age = told?.lag_ms == null ? t("banner.standbyUnread") : t("banner.standby", { seconds: Math.round(told.lag_ms / 1_000) });
  return (
    <div class="banner" role="status" data-testid="standby">
      <span>
        {age} {master ? t("banner.changes") : t("banner.noMaster")} {master ? <a href={`${master}${location.pathname}${location.search}`}>{master}</a> : null}
      </span>
    </div>
  );
}

/** Without this scheduler, a person can go to another one. */
function Others() {
  const others = othersOf(standing.value, location.origin);
  if (!others.length) return null;
  return (
    <span data-testid="others">
      {t("banner.others")}{" "}
      {others.map((address) => (
        <a key={address} href={`${address}${location.pathname}${location.search}`}>
          {address}
        </a>
      ))}
    </span>
  );
}

/** Another version serves than the one this page came from: it may send what this page does not know. */
function Updated() {
  if (!updated.value) return null;
  return (
    <div class="banner" role="alert" data-testid="updated">
      <span>{t("banner.updated", { version: board.value?.version ?? "" })}</span>
      <button type="button" onClick={() => location.reload()}>
        {t("broken.reload")}
      </button>
    </div>
  );
}
