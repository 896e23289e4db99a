import assert from "node:assert/strict";
import test from "node:test";
import { applyDelta, gpuAt } from "../src/board/board";
import type { Board, Delta } from "../src/types";
import { delayMs } from "../src/board/backoff";

function board(): Board {
  return {
    v: 1,
    seq: 7,
    index: 100,
    at_ms: 1_000,
    role: "master",
    version: "1",
    isolation: "",
    build: "",
    ready: true,
    epoch: 1,
    statuses: ["idle", "busy", "offline"],
    node_statuses: ["ready"],
    healths: ["trusted"],
    models: ["A100"],
    nodes: { id: ["n1"], status: [0], first: [0], gpus: [2], labels: [{}], reason: [""], since_ms: [0] },
    gpus: {
      id: ["g0", "g1"],
      node: [0, 0],
      index: [0, 1],
      model: [0, 0],
      mem_total: [40_000, 40_000],
      status: [0, 1],
      health: [0, 0],
      util: [0, 90],
      mem_used: [0, 20_000],
      mem_foreign: [0, 0],
      mem_reserved: [0, 30_000],
      temp: [30, 70],
      power: [50, 300],
      tasks: [[], [42]],
      task_count: [0, 1],
      fault: ["", ""],
      warm: [[], []],
    },
    pools: {},
    quota: { total_gpus: 2, online_percent: 0.7, mode: "strict", reclaim: "wait" },
    tenants: [],
    tenants_more: 0,
    counts: { waiting: 3, running: 1 } as Board["counts"],
    alerts: null,
    history: { step_ms: 5_000, at_ms: [1, 2], util: [5, 6], waiting: [0, 0], running: [1, 1], wait_p50_ms: [null, 3], finished_per_min: [0, 0] },
  };
}

function delta(changes: Partial<Delta> = {}): Delta {
  return { seq: 8, index: 101, at_ms: 2_000, ...changes };
}

test("a change touches what it names and nothing else", () => {
  const before = board();
  const after = applyDelta(before, delta({ gpus: { util: { i: [0], v: [55] }, status: { i: [0], v: [1] } }, counts: { waiting: 2 } }));
  assert.ok(after);
  assert.deepEqual(after.gpus.util, [55, 90]);
  assert.deepEqual(after.gpus.status, [1, 1]);
  assert.equal(after.counts.waiting, 2);
  assert.equal(after.counts.running, 1);
  assert.equal(after.gpus.temp, before.gpus.temp, "columns without a change are the same object: nothing is drawn anew");
  assert.deepEqual(before.gpus.util, [0, 90], "what was shown before is not changed behind its back");
});

test("a missing beat asks for a snapshot", () => {
  assert.equal(applyDelta(board(), delta({ seq: 9 })), null);
  assert.equal(applyDelta(board(), delta({ seq: 7 })), null);
});

test("unknown columns and places of a newer server do no harm", () => {
  const after = applyDelta(board(), delta({ gpus: { colour: { i: [0], v: ["red"] }, util: { i: [9], v: [1] } } }));
  assert.ok(after);
  assert.equal(after.gpus.util.length, 2);
});

test("the last ten minutes do not grow", () => {
  let now = board();
  for (let step = 0; step < 500; step++) {
    const next = applyDelta(now, { seq: now.seq + 1, index: 1, at_ms: step, point: { at_ms: step, util: step, waiting: 1, running: 2, wait_p50_ms: null, finished_per_min: 0 } });
    assert.ok(next);
    now = next;
  }
  assert.equal(now.history.at_ms.length, 120);
  assert.equal(now.history.util.at(-1), 499);
  assert.equal(now.history.wait_p50_ms.at(-1), null);
});

test("what was told as a whole replaces the whole", () => {
  const after = applyDelta(board(), delta({ alerts: { firing: 2, pending: 0, resolved: 0 }, tenants: [{ id: "lab" }] as never }));
  assert.equal(after?.alerts?.firing, 2);
  assert.equal(after?.tenants[0]?.id, "lab");
});

test("a GPU has words for its codes", () => {
  const gpu = gpuAt(board(), 1);
  assert.equal(gpu.status, "busy");
  assert.equal(gpu.node, "n1");
  assert.equal(gpu.model, "A100");
  assert.deepEqual(gpu.tasks, [42]);
});

test("tries to connect come less and less often, and at least every half minute", () => {
  assert.ok(delayMs(0, () => 1) <= 1_000);
  assert.ok(delayMs(3, () => 0) >= 4_000);
  assert.equal(delayMs(50, () => 1), 30_000);
  assert.ok(delayMs(50, () => 0) >= 15_000);
});
