// A list of things that the server has: asked for, empty, filtered to nothing, or a table.
import type { ComponentChildren } from "preact";
import { number } from "../format";
import { t } from "../i18n";
import type { Asked } from "./asked";
import { CopyLine, Empty, ProblemBox, Skeleton } from "./parts";
import { useRows } from "./rows";

const MAX_ROWS = 300;

export interface Column<Row> {
  head: string;
  cell: (row: Row) => ComponentChildren;
  kind?: "num" | "wide-only" | "wide-only muted" | "num wide-only" | "actions";
  title?: (row: Row) => string;
}

interface Props<Data, Row> {
  asked: Asked<Data>;
  rowsOf: (data: Data) => Row[];
  shown?: (row: Row) => boolean;
  columns: Column<Row>[];
  id: (row: Row) => string;
  testid: string; // of the table: …-table, of a row: …-ID
  faded?: (row: Row) => boolean;
  open?: (row: Row) => void;
  empty: { title: string; how: string; command: string };
}

export function List<Data, Row>(props: Props<Data, Row>) {
  const { asked, empty } = props;
  const rows = asked.data ? props.rowsOf(asked.data) : [];
  const shown = props.shown ? rows.filter(props.shown) : rows;
  return (
    <section class="card">
      {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
      {!asked.data && !asked.problem ? <Skeleton lines={6} height={26} /> : null}
      {asked.data && !rows.length ? (
        <Empty title={empty.title}>
          <p>{empty.how}</p>
          <CopyLine text={empty.command} />
        </Empty>
      ) : null}
      {shown.length ? <Table {...props} rows={shown} /> : null}
      {rows.length && !shown.length ? <Empty title={t("cluster.noMatch")} /> : null}
      {shown.length > MAX_ROWS ? <p class="muted small-print">{t("common.more", { n: number(shown.length - MAX_ROWS) })}</p> : null}
    </section>
  );
}

function Table<Data, Row>({ rows, columns, id, testid, faded, open }: Props<Data, Row> & { rows: Row[] }) {
  const { at, body } = useRows(rows, { open: (row) => open?.(row) });
  return (
    <div class="table-wrap">
      <table data-testid={`${testid}-table`}>
        <thead>
          <tr>
            {columns.map(({ head, kind }) => (
              <th key={head} class={kind === "actions" ? "" : kind}>
                {kind === "actions" ? <span class="hidden-text">{head}</span> : head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body}>
          {rows.slice(0, MAX_ROWS).map((row, number) => (
            <tr key={id(row)} class={[number === at ? "at" : "", faded?.(row) ? "muted" : ""].join(" ").trim()} data-testid={`${testid}-${id(row)}`}>
              {columns.map(({ head, cell, kind, title }) => (
                <td key={head} class={kind === "actions" ? "num" : kind} title={title?.(row)}>
                  {cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
