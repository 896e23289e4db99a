import assert from "node:assert/strict";
import test from "node:test";
import { brief, called, command, duration, exact, megabytes, number, percent, relative, seconds, taskNumber } from "../src/format";

test("durations have two units at most", () => {
  const cases: [number, string][] = [
    [0, "0 ms"],
    [850, "850 ms"],
    [1_500, "1.5 s"],
    [42_000, "42 s"],
    [59_600, "1 min"],
    [200_000, "3 min 20 s"],
    [900_000, "15 min"],
    [7_500_000, "2 h 5 min"],
    [273_600_000, "3 d 4 h"],
    [-5_000, "−5 s"],
  ];
  for (const [ms, text] of cases) assert.equal(duration(ms), text, String(ms));
});

test("figures have one unit", () => {
  assert.equal(brief(42_000), "42 s");
  assert.equal(brief(126_000), "2.1 min");
  assert.equal(brief(640_000), "11 min");
  assert.equal(brief(4_680_000), "1.3 h");
  assert.equal(brief(null), "–");
});

test("what is not known is a dash, never NaN", () => {
  for (const shown of [duration(null), number(undefined), percent(Number.NaN), megabytes(null)]) assert.equal(shown, "–");
});

test("numbers are grouped, sizes have their unit", () => {
  assert.equal(number(100_000), "100,000");
  assert.equal(number(9.55, 1), "9.6");
  assert.equal(megabytes(512), "512 MB");
  assert.equal(megabytes(40_960), "40.0 GB");
  assert.equal(megabytes(2_097_152), "2.0 TB");
  assert.equal(percent(0.654), "65 %");
});

test("times speak the viewer's language", () => {
  assert.match(relative(0, 180_000, "en"), /3.*ago/);
  assert.match(relative(7_200_000, 0, "en"), /in 2/);
  assert.match(relative(0, 180_000, "zh"), /3.*前/);
  assert.match(exact(Date.UTC(2026, 10, 15, 12), "en"), /2026/);
});

test("a command can be copied into a shell", () => {
  assert.equal(command("python train.py"), "python train.py");
  assert.equal(command(["python", "-c", "print('a b')"]), `python -c 'print('\\''a b'\\'')'`);
});

test("times of forms are seconds", () => {
  assert.equal(seconds("90m"), 5_400);
  assert.equal(seconds("2 h"), 7_200);
  assert.equal(seconds("3600"), 3_600);
  assert.equal(seconds("soon"), null);
  assert.equal(taskNumber("task-42"), 42);
});

test("a task without a name is called by what it runs", () => {
  assert.equal(called({ name: "night", command: "python train.py" }), "night");
  assert.equal(called({ name: "", command: ["python", "train.py", "a b"] }), "python train.py 'a b'");
  assert.equal(called({ name: "", command: "" }), "");
});
