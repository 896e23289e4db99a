import assert from "node:assert/strict";
import test from "node:test";
import templates from "../../src/dgpu/client/languages/zh.json";
import cases from "../../tests/unit/client/language_cases.json";
import { byPattern, fill, type Section } from "../src/i18n/told";

test("a template is filled as on the command line", () => {
  for (const { section, code, facts, text } of cases) assert.equal(fill(templates, section as Section, code, facts), text, code);
});

test("descriptions of expected values are translated as on the command line", () => {
  assert.equal(byPattern(templates.expected, "at most 8 bytes in all"), "总共最多 8 字节");
  assert.equal(byPattern(templates.expected, "a whole number from -2 to 5"), "-2 到 5 的整数");
  assert.match(byPattern(templates.expected, 'values like {"lr": [0.1, 0.01], "seed": "0-4"}'), /^\{"lr"/);
  assert.equal(byPattern(templates.expected, "something new"), "something new");
  assert.equal(byPattern(templates.step, "rolled back to generation 3 by ann"), "ann 回退到第 3 代");
  assert.equal(byPattern(templates.step, "task-7 is not ready"), "task-7 未就绪");
});

test("a moment is a local time", () => {
  const text = fill(templates, "alert", "agent_offline", { node: "n1", offline_since: "2026-01-02T03:04:05Z", tasks: 0 });
  assert.match(text ?? "", /^节点 n1 自 2026-01-0[123] \d\d:\d\d:05 起离线。$/);
});

test("words of the scheduler, plurals and durations follow the language", async () => {
  Object.defineProperty(globalThis, "navigator", { value: { language: "en" }, configurable: true });
  const { duration, language, problemText, t } = await import("../src/i18n");
  const problem = { status: 404, title: "", detail: "There is no task task-7.", code: "unknown_task", facts: { task_id: "task-7" } };
  assert.equal(problemText(problem), "There is no task task-7.");
  assert.equal(t("tasks.cancelled", { n: 1 }), "1 task cancelled.");
  assert.equal(t("tasks.cancelled", { n: 2 }), "2 tasks cancelled.");
  language.value = "zh";
  assert.equal(problemText(problem), "没有任务 task-7。");
  assert.equal(problemText({ ...problem, code: "from_the_future" }), "There is no task task-7.");
  assert.equal(duration(200_000), "3 分 20 秒");
  language.value = "en";
});
