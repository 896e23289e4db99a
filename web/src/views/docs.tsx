// The REST API, in the look of the pages. The server describes its calls in one plain page, also for programs and for
// browsers without scripts; its text is taken from there, element by element.
import type { ComponentChildren } from "preact";
import { h } from "preact";
import { useMemo } from "preact/hooks";
import { ApiError, problemOf } from "../api";
import { t } from "../i18n";
import { route, setQuery } from "../router";
import { useAsked } from "../ui/asked";
import { Empty, Page, ProblemBox, Skeleton } from "../ui/parts";

const KNOWN = new Set(["p", "b", "code", "ul", "li", "pre", "table", "thead", "tbody", "tr", "td", "th", "h2", "h3"]);

interface Part {
  text: string; // in lower case
  shown: ComponentChildren[];
}

export function Docs() {
  const asked = useAsked<string>("docs", read);
  const find = (route.value.query.get("find") ?? "").toLowerCase();
  const parts = useMemo(() => (asked.data ? partsOf(asked.data) : []), [asked.data]);
  const found = parts.filter((part) => part.text.includes(find));
  return (
    <Page
      title={t("docs.title")}
      testid="docs"
      actions={
        <>
          <input type="search" class="filter" placeholder={t("docs.find")} aria-label={t("docs.find")} value={find} onInput={(event) => setQuery({ find: event.currentTarget.value }, { replace: true })} />
          <a class="button" href="/openapi.json" download="openapi.json">
            OpenAPI
          </a>
        </>
      }
    >
      {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
      {!asked.data && !asked.problem ? <Skeleton lines={12} height={24} /> : null}
      <div class="stack docs">
        {found.map((part, at) => (
          <section key={at} class="card">
            {part.shown}
          </section>
        ))}
      </div>
      {parts.length && !found.length ? <Empty title={t("docs.none")} /> : null}
    </Page>
  );
}

async function read(signal: AbortSignal): Promise<string> {
  const answer = await fetch("/docs", { signal, credentials: "same-origin" });
  if (!answer.ok) throw new ApiError(await problemOf(answer));
  return answer.text();
}

/** One part for each call. The document is inert: nothing in it runs or loads. */
function partsOf(page: string): Part[] {
  const parts: Part[] = [];
  const content = page.slice(page.indexOf("<body>")); // without its style, which the policy of this page reports
  for (const element of new DOMParser().parseFromString(content, "text/html").body.children) {
    const kind = element.tagName.toLowerCase();
    if (kind === "h1" || !KNOWN.has(kind)) continue;
    if (kind === "h3" || kind === "h2" || !parts.length) parts.push({ text: "", shown: [] });
    const part = parts.at(-1);
    part?.shown.push(copy(element));
    if (part) part.text += (element.textContent ?? "").toLowerCase();
  }
  return parts.slice(parts[0]?.shown.length === 1 ? 1 : 0); // the line with the version comes first
}

function copy(element: Element): ComponentChildren {
  const kind = element.tagName.toLowerCase();
  const inner = [...element.childNodes].map((child) => (child instanceof Element ? copy(child) : child.textContent));
  if (!KNOWN.has(kind)) return inner;
  return h(kind === "h3" ? "h2" : kind, kind === "pre" ? { tabIndex: 0 } : null, inner);
}
