import assert from "node:assert/strict";
import test from "node:test";
import { BLANK, formOf, taskOf } from "../src/submit/form";
import { found, Lines, MAX_LINES } from "../src/task/lines";
import { PLAIN, render, textOf } from "../src/task/terminal";
import { fileAddress, filesAddress, nameOf, steps } from "../src/task/paths";
import { spansOf } from "../src/task/spans";
import type { Task, TaskEvent } from "../src/types";

function task(changes: Partial<Task>): Task {
  return { task_id: "task-1", status: "running", created_at: "2026-01-01T00:00:00Z", started_at: null, finished_at: null, attempt: 1, ...changes } as Task;
}

const at = (second: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();
const ms = (second: number) => Date.UTC(2026, 0, 1, 0, 0, second);
const run = (attempt: number, placed: number, started: number | null, ended: number | null) => ({
  attempt,
  node: "n1",
  nodes: ["n1"],
  gpus: [],
  placed_at: at(placed),
  started_at: started === null ? null : at(started),
  ended_at: ended === null ? null : at(ended),
  exit_code: null,
  reason: "",
  error: "",
  usage: null,
});

test("a life: it waited, started, ran, was put back, ran again", () => {
  const spans = spansOf(task({ status: "success", finished_at: at(60), attempts: [run(1, 10, 12, 20), run(2, 30, 30, 60)] }), [], ms(99));
  assert.deepEqual(
    spans.map((span) => [span.kind, (span.to - span.from) / 1_000, span.attempt, span.outcome, span.open]),
    [
      ["waiting", 10, 1, "", false],
      ["starting", 2, 1, "", false],
      ["running", 8, 1, "requeued", false],
      ["waiting", 10, 2, "", false],
      ["running", 30, 2, "success", false],
    ],
  );
});

test("what goes on reaches to now", () => {
  const waiting = spansOf(task({ status: "pending", attempt: 0 }), [], ms(25));
  assert.deepEqual(waiting.map((span) => [span.kind, span.to, span.open]), [["waiting", ms(25), true]]);
  const running = spansOf(task({ attempts: [run(1, 5, 6, null)] }), [], ms(25)).at(-1);
  assert.deepEqual([running?.kind, running?.to, running?.open], ["running", ms(25), true]);
});

test("a life without a list of attempts is read from the events", () => {
  const events: TaskEvent[] = [
    { index: 1, at: at(0), type: "task_submitted", facts: {} },
    { index: 2, at: at(3), type: "task_scheduled", facts: { attempt: 1 } },
    { index: 3, at: at(4), type: "task_started", facts: {} },
    { index: 4, at: at(9), type: "task_finished", facts: {} },
  ];
  const spans = spansOf(task({ status: "failed", finished_at: at(9) }), events, ms(20));
  assert.deepEqual(spans.map((span) => [span.kind, span.outcome]), [["waiting", ""], ["starting", ""], ["running", "failed"]]);
});

test("output comes in pieces, with colours and progress bars, and stays bounded", () => {
  const lines = new Lines();
  lines.push("epo");
  lines.push("ch 1\n\u001b[31mred\u001b[0m\n10%\r50%\r100%\nlast");
  assert.deepEqual(lines.all().map(textOf), ["epoch 1", "red", "100%", "last"]);
  assert.deepEqual(found(lines.all(), "RED"), [{ number: 2, line: "red" }]);
  lines.push("\n" + "x\n".repeat(MAX_LINES + 100));
  assert.equal(lines.all().length, MAX_LINES);
  assert.equal(lines.dropped, 104);
  lines.push("y".repeat(1_000_000));
  assert.ok((lines.all().at(-1) ?? "").length <= 4_000);
});

test("a form becomes a task; what is empty is left to the scheduler", () => {
  const { body, mistakes } = taskOf({ ...BLANK, command: " python t.py ", priority: "high", memory: "8000", timeout: "2h", env: "A=1\nB=x=y", after: "task-1, 2" });
  assert.deepEqual(mistakes, []);
  assert.deepEqual(body, { command: "python t.py", priority: "high", gpu_count: 1, gpu_memory_mb: 8000, timeout_seconds: 7200, env: { A: "1", B: "x=y" }, after: ["task-1", "2"] });
});

test("mistakes are told at their field, before anything is sent", () => {
  const { mistakes } = taskOf({ ...BLANK, command: "x", timeout: "soon", env: "NOVALUE" });
  assert.deepEqual(mistakes.map((mistake) => mistake.field), ["timeout", "env"]);
});

test("a task can be taken as the pattern of the next", () => {
  const form = formOf(task({ command: ["python", "a b.py"], name: "n", tenant_id: "lab", pool: "batch", priority: 50, gpu_count: 2, gpu_memory_mb: 0, gpu_model: ["A100", "H100"], shared: false, nodes: 1, timeout_seconds: null, max_retries: 3, workdir: "", env: ["TOKEN"] }));
  assert.equal(form.command, "python 'a b.py'");
  assert.equal(form.model, "A100|H100");
  assert.equal(form.env, "TOKEN=");
});

test("the address of a file keeps its slashes and encodes all else", () => {
  const list = filesAddress("task-7");
  assert.equal(fileAddress(list, "ckpt/a b%20é?.pt"), "/api/v1/tasks/task-7/files/ckpt/a%20b%2520%C3%A9%3F.pt");
  assert.equal(nameOf("ckpt/deep/model.pt"), "model.pt");
  assert.deepEqual(steps("a/b/c"), ["a", "a/b", "a/b/c"]);
});

test("a task like another one does not get the directory that was made for the other", () => {
  const other = task({ command: "true", workdir: "/var/lib/dgpu-agent/tasks/tasks/task-1.1", own_workdir: true });
  assert.equal(formOf(other).workdir, "");
  assert.equal(formOf(task({ command: "true", workdir: "/srv/project", own_workdir: false })).workdir, "/srv/project");
});

test("colours last until they are reset, also over lines", () => {
  const first = render("a \u001b[1;31mred\u001b[0m b \u001b[38;5;208mo", PLAIN);
  assert.deepEqual(first.line, [
    { text: "a ", style: {} },
    { text: "red", style: { bold: true, fg: 1 } },
    { text: " b ", style: {} },
    { text: "o", style: { fg: "#ff8700" } },
  ]);
  assert.deepEqual(render("still\u001b[39m plain", first.style).line, [
    { text: "still", style: { fg: "#ff8700" } },
    { text: " plain", style: {} },
  ]);
  assert.equal(render("x\u001b[38;2;1;2;3my", PLAIN).style.fg, "#010203");
});

test("a carriage return overwrites from the beginning, as in a terminal", () => {
  const cases: [string, string][] = [
    ["100%\r 20", " 20%"],
    ["10%\r50%\r", "50%"],
    ["long text\r\u001b[Kshort", "short"],
    ["ab\b\bX", "Xb"],
    ["ab\u001b[5Gx", "ab  x"],
    ["windows\r", "windows"],
  ];
  for (const [raw, shown] of cases) assert.equal(textOf(render(raw, PLAIN).line), shown, JSON.stringify(raw));
});

test("hostile sequences do nothing, and hide nothing", () => {
  const cases: [string, string][] = [
    ["\u001b]0;owned\u0007text", "text"],
    ["\u001b]8;;https://evil.example\u001b\\link\u001b]8;;\u001b\\", "link"],
    ["\u001b[2J\u001b[H\u001b[?1049hstill here", "still here"],
    ["\u001b[8mhidden\u001b[0m", "hidden"],
    ["\u001b[999999999Cfar", ""],
    ["\u001b[99999999999999999999999999mok", "ok"],
    ["\u001bP1$r0m\u001b\\a\u0000\u0085b", "ab"],
    ["half \u001b[3", "half 3"],
  ];
  for (const [raw, shown] of cases) assert.equal(textOf(render(raw, PLAIN).line).trim(), shown, JSON.stringify(raw));
  assert.ok(textOf(render(`\u001b[31m${"x".repeat(100_000)}`, PLAIN).line).length <= 4_000);
});

test("times stay before their lines, also where a line overwrites itself", () => {
  const lines = new Lines(true);
  lines.push("2026-01-02T03:04:05.678Z 10%\r100%\n-                        without a time\n2026-01-02T03:04:06.000Z \u001b[31mred");
  const texts = lines.all().map(textOf);
  assert.match(texts[0] ?? "", /^\d\d:04:05 100%$/);
  assert.equal(texts[1], "--:--:-- without a time");
  assert.match(texts[2] ?? "", /^\d\d:04:06 red$/);
});
