import assert from "node:assert/strict";
import test from "node:test";
import { bounded, byGpu, huesOf, LONGEST, panned, SHORTEST, ticks, timeAt, xOf, zoomed, type Bar } from "../src/timeline/scale";
import { askedRange, expectedOf, reservedOf } from "../src/timeline/data";
import type { Why } from "../src/types";

const HOUR = 3_600_000;

function bar(task_id: string, start: number, end: number | null, gpu_ids = ["g0"]): Bar {
  return { task_id, name: "", tenant_id: "lab", pool: "batch", attempt: 1, node: "n1", gpu_ids, start, end, status: "success", reason: "" };
}

test("a moment and its place on the line are the same thing", () => {
  const range = { from: 10 * HOUR, to: 16 * HOUR };
  assert.equal(xOf(13 * HOUR, range, 600), 300);
  assert.equal(timeAt(300, range, 600), 13 * HOUR);
});

test("zooming keeps the moment under the pointer, from minutes to more than a week", () => {
  const range = { from: 0, to: 6 * HOUR };
  const near = zoomed(range, 0.5, 2 * HOUR);
  assert.equal(xOf(2 * HOUR, near, 600), xOf(2 * HOUR, range, 600));
  assert.equal(near.to - near.from, 3 * HOUR);
  const nearest = zoomed(range, 0, HOUR);
  assert.equal(nearest.to - nearest.from, SHORTEST);
  const farthest = zoomed(range, 1e9, HOUR);
  assert.equal(farthest.to - farthest.from, LONGEST);
});

test("panning ends in the near future", () => {
  const range = bounded(panned({ from: 0, to: HOUR }, 100 * HOUR), 2 * HOUR);
  assert.equal(range.to, 2.5 * HOUR);
  assert.equal(range.to - range.from, HOUR);
  assert.deepEqual(bounded({ from: 0, to: HOUR }, 2 * HOUR), { from: 0, to: HOUR });
});

test("labels are round in the viewer's own time zone and not too close", () => {
  const range = { from: 0, to: 6 * HOUR };
  const marks = ticks(range, 900, 0);
  assert.ok(marks.length >= 5 && marks.length <= 12);
  assert.ok(marks.every((mark) => mark.at % (30 * 60_000) === 0));
  const delhi = ticks({ from: 0, to: 4 * 24 * HOUR }, 800, 330);
  assert.ok(delhi.some((mark) => mark.isDay));
  assert.ok(delhi.filter((mark) => mark.isDay).every((mark) => (mark.at + 330 * 60_000) % (24 * HOUR) === 0));
  for (const span of [SHORTEST, HOUR, LONGEST]) assert.ok(ticks({ from: 0, to: span }, 1_000, 0).length <= 12);
});

test("tasks that share a card lie beside each other, the others have it to themselves", () => {
  const lane = byGpu([bar("a", 0, 10), bar("b", 5, 20), bar("c", 10, 15), bar("d", 30, null)], 40).get("g0");
  assert.deepEqual(
    lane?.map(({ bar: each, row, rows }) => [each.task_id, row, rows]),
    [
      ["a", 0, 2],
      ["b", 1, 2],
      ["c", 0, 2],
      ["d", 0, 1],
    ],
  );
});

test("a task on several cards is drawn on each", () => {
  const lanes = byGpu([bar("a", 0, 10, ["g0", "g1"])], 40);
  assert.equal(lanes.size, 2);
});

test("tenants have different colours as long as these last", () => {
  const hues = huesOf(["nlp", "vision", "nlp", "search"], 6);
  assert.equal(new Set(hues.values()).size, 3);
  assert.deepEqual(hues, huesOf(["search", "vision", "nlp"], 6), "whoever comes first");
  assert.ok([...huesOf(["a", "b", "c"], 2).values()].every((hue) => hue < 2));
});

test("panning a little asks the server nothing new", () => {
  const one = askedRange({ from: 100 * HOUR, to: 106 * HOUR });
  const two = askedRange({ from: 100.2 * HOUR, to: 106.2 * HOUR });
  assert.deepEqual(one, two);
  assert.ok(one.from <= 100 * HOUR && one.to >= 106.2 * HOUR);
});

test("a reservation lies on the GPUs it holds, also where no forecast knows the start", () => {
  const task = { task_id: "task-7", name: "", command: ["python", "big.py"], tenant_id: "lab", pool: "batch" };
  const why = { blockers: [], expected_start: null, reservation: { at: "1970-01-01T01:00:00Z", nodes: ["n1"], gpus: ["g0", "g1"] } };
  const found = expectedOf(task, why as unknown as Why);
  assert.equal(found?.bar.start, HOUR);
  assert.equal(found?.bar.name, "python big.py", "one without a name is known by what it runs");
  const lanes = [{ label: "7", node: "", gpu: "", first: true, expected: found! }];
  const reserved = reservedOf(lanes);
  assert.deepEqual([...reserved.keys()], ["g0", "g1"]);
  assert.equal(reserved.get("g1")?.[0]?.at, HOUR);
  assert.equal(expectedOf(task, { ...why, reservation: null } as unknown as Why), null);
});
