// Walking over the rows of a table with the keyboard: the focus moves to the link of the row.
import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { takeRows } from "../keyboard";

interface Rows<T> {
  open: (item: T) => void;
  select?: (item: T) => void;
}

interface Walk {
  at: number; // the row where the keyboard is; -1: nowhere yet
  body: RefObject<HTMLTableSectionElement | null>; // of the table
}

export function useRows<T>(items: T[], orders: Rows<T>): Walk {
  const [at, setAt] = useState(-1);
  const body = useRef<HTMLTableSectionElement>(null);
  const latest = useRef({ items, orders });
  latest.current = { items, orders };
  // Before the rows are painted: a key that follows their sight must find them.
  useLayoutEffect(() => {
    const on = (row: number, order: ((item: T) => void) | undefined) => {
      const item = latest.current.items[row];
      if (item !== undefined) order?.(item);
    };
    return takeRows({
      get count() {
        return latest.current.items.length;
      },
      rowOf: (element) => {
        const row = element.closest("tr");
        return row ? rowsOf(body.current).indexOf(row) : -1;
      },
      show: (row) => {
        setAt(row);
        const shown = rowsOf(body.current)[row];
        shown?.querySelector("a")?.focus({ preventScroll: true });
        shown?.scrollIntoView({ block: "nearest" });
      },
      open: (row) => on(row, latest.current.orders.open),
      select: (row) => on(row, latest.current.orders.select),
    });
  }, []);
  return { at, body };
}

/** Without what unfolds below a row. */
function rowsOf(body: HTMLTableSectionElement | null): Element[] {
  return [...(body?.children ?? [])].filter((row) => !row.classList.contains("inner"));
}
