// Every view has an address; the browser's own history does the rest.
import { computed, signal } from "@preact/signals";

const place = signal(location.pathname + location.search);

export const route = computed(() => {
  const url = new URL(place.value, location.origin);
  const parts = url.pathname.split("/").filter(Boolean).map(decoded);
  return { view: parts[0] ?? "cluster", id: parts[1] ?? "", query: url.searchParams };
});

/** An address that was cut or mistyped shows a page, too. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function go(address: string, options: { replace?: boolean } = {}): void {
  if (address === place.value) return;
  if (options.replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  const moved = address.split("?")[0] !== place.value.split("?")[0];
  place.value = address;
  if (moved && !options.replace) window.scrollTo(0, 0);
}

/** The same view with other parameters; what is empty leaves the address. */
export function withQuery(changes: Record<string, string | null>): string {
  const url = new URL(place.value, location.origin);
  for (const [name, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  return url.pathname + url.search;
}

export function setQuery(changes: Record<string, string | null>, options: { replace?: boolean } = {}): void {
  go(withQuery(changes), options);
}

export function startRouter(): void {
  window.addEventListener("popstate", () => {
    place.value = location.pathname + location.search;
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (link.pathname.startsWith("/api/")) return; // pages of the server
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
