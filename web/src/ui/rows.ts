// Walking over the rows of a table with the keyboard.
import { useEffect, useRef, useState } from "preact/hooks";
import { takeRows } from "../keyboard";

interface Rows<T> {
  open: (item: T) => void;
  select?: (item: T) => void;
}

/** The row where the keyboard is; -1: nowhere yet. */
export function useRows<T>(items: T[], orders: Rows<T>): number {
  const [at, setAt] = useState(-1);
  const latest = useRef({ items, orders });
  latest.current = { items, orders };
  useEffect(() => {
    const on = (row: number, order: ((item: T) => void) | undefined) => {
      const item = latest.current.items[row];
      if (item !== undefined) order?.(item);
    };
    return takeRows({
      get count() {
        return latest.current.items.length;
      },
      show: setAt,
      open: (row) => on(row, latest.current.orders.open),
      select: (row) => on(row, latest.current.orders.select),
    });
  }, []);
  return at;
}
