// The files of a task on its node: a list to walk through, and downloads.
import { useEffect, useState } from "preact/hooks";
import { get, path } from "../api";
import { bytes } from "../format";
import { problemText, t } from "../i18n";
import type { FileEntry, FileList, Problem, Task } from "../types";
import { useAsked } from "../ui/asked";
import { ProblemBox, Skeleton, Time } from "../ui/parts";
import { complain } from "../ui/toast";
import { fileAddress, filesAddress, nameOf, steps } from "./paths";

type Query = Record<string, string | number | null | undefined>;

const PER_PAGE = 100;
const QUIET = new Set(["files_gone", "node_unreachable"]); // no fault of anyone: a line is enough

export function Files({ task }: { task: Task }) {
  const [directory, setDirectory] = useState("");
  const [attempt, setAttempt] = useState(0); // 0: the latest
  const [rank, setRank] = useState(0);
  const [more, setMore] = useState<FileList[]>([]);
  const address = filesAddress(task.task_id);
  const query = { path: directory, attempt: attempt || null, rank: rank || null, limit: PER_PAGE };
  const key = `${task.task_id} ${task.attempt} ${task.status} ${JSON.stringify(query)}`;
  const ran = task.attempt > 0 && !task.allocation;
  const asked = useAsked<FileList>(ran ? key : "", (signal) => get(address, query, signal));
  useEffect(() => setMore([]), [key, asked.data]);
  if (!ran) return null;
  const pages = asked.data ? [asked.data, ...more] : [];
  const entries = pages.flatMap((page) => page.files);
  const cursor = pages.at(-1)?.next_cursor ?? null;
  const readOn = () => void get<FileList>(address, { ...query, cursor }).then((page) => setMore([...more, page]), complain);
  return (
    <section class="card files" aria-label={t("files.title")} data-testid="files">
      <header>
        <h2>{t("files.title")}</h2>
        <Where directory={directory} open={setDirectory} />
        <span class="gap" />
        <Choice label={t("task.attempts")} count={task.attempt} chosen={attempt || task.attempt} from={1} choose={(n) => setAttempt(n === task.attempt ? 0 : n)} word="log.attempt" />
        <Choice label={t("log.rank", { n: "" })} count={task.nodes} chosen={rank} from={0} choose={setRank} word="log.rank" />
        <button type="button" onClick={asked.refresh} data-testid="files-refresh">
          {t("files.refresh")}
        </button>
      </header>
      {asked.problem ? <Trouble problem={asked.problem} retry={asked.refresh} /> : null}
      {!asked.data && !asked.problem ? <Skeleton height={60} /> : null}
      {asked.data && !asked.problem ? (
        <>
          {entries.length ? <Table entries={entries} address={address} query={query} open={setDirectory} /> : <p class="muted">{asked.data.gone ? t("files.gone") : t("files.empty")}</p>}
          {cursor ? (
            <button type="button" onClick={readOn} data-testid="files-more">
              {t("files.more")}
            </button>
          ) : null}
          <small class="muted">
            <code>{`${asked.data.node}:${asked.data.workdir}`}</code> {task.own_workdir && !asked.data.gone ? t("files.kept") : ""}
          </small>
        </>
      ) : null}
    </section>
  );
}

function Where({ directory, open }: { directory: string; open: (directory: string) => void }) {
  if (!directory) return null;
  return (
    <nav class="row" aria-label={t("files.where")}>
      <button type="button" class="link" onClick={() => open("")}>
        {t("files.top")}
      </button>
      {steps(directory).map((step) => (
        <>
          <span class="muted">/</span>
          <button key={step} type="button" class="link" onClick={() => open(step)}>
            {nameOf(step)}
          </button>
        </>
      ))}
    </nav>
  );
}

function Choice({ label, count, chosen, from, choose, word }: { label: string; count: number; chosen: number; from: number; choose: (n: number) => void; word: "log.attempt" | "log.rank" }) {
  if (count < 2) return null;
  return (
    <select aria-label={label} value={chosen} onChange={(event) => choose(Number(event.currentTarget.value))}>
      {Array.from({ length: count }, (_, at) => at + from).map((each) => (
        <option key={each} value={each}>
          {t(word, { n: each })}
        </option>
      ))}
    </select>
  );
}

function Trouble({ problem, retry }: { problem: Problem; retry: () => void }) {
  return QUIET.has(problem.code) ? (
    <p class="muted" data-testid="files-none">
      {problemText(problem)}
    </p>
  ) : (
    <ProblemBox problem={problem} retry={retry} />
  );
}

function Table({ entries, address, query, open }: { entries: FileEntry[]; address: string; query: Query; open: (directory: string) => void }) {
  return (
    <div class="table-wrap">
      <table data-testid="files-table">
        <thead>
          <tr>
            <th>{t("files.name")}</th>
            <th class="num">{t("files.size")}</th>
            <th>{t("files.changed")}</th>
          </tr>
        </thead>
        <tbody>
          {entries.map((entry) => (
            <tr key={entry.path}>
              <td>
                <Name entry={entry} address={address} run={{ attempt: query.attempt, rank: query.rank }} open={open} />
              </td>
              <td class="num">{entry.kind === "file" ? bytes(entry.size_bytes) : ""}</td>
              <td>
                <Time at={entry.modified_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Name({ entry, address, run, open }: { entry: FileEntry; address: string; run: Query; open: (directory: string) => void }) {
  const name = nameOf(entry.path);
  if (entry.kind === "directory") {
    return (
      <button type="button" class="link" onClick={() => open(entry.path)}>
        {name}/
      </button>
    );
  }
  if (entry.kind === "file") {
    return (
      <a href={path(fileAddress(address, entry.path), run)} download={name} onClick={(event) => void check(event, () => get(address, { ...run, path: entry.path, limit: 1 }))}>
        {name}
      </a>
    );
  }
  return (
    <span class="muted" title={t("files.special")}>
      {name} {entry.target ? `→ ${entry.target}` : ""}
    </span>
  );
}

/** A browser saves a failed download as a file with an error in it: ask about the file first. */
async function check(event: MouseEvent, ask: () => Promise<unknown>): Promise<void> {
  const link = event.currentTarget as HTMLAnchorElement;
  if (link.dataset.checked) {
    delete link.dataset.checked;
    return;
  }
  event.preventDefault();
  try {
    await ask();
  } catch (error) {
    complain(error);
    return;
  }
  link.dataset.checked = "yes";
  link.click();
}
