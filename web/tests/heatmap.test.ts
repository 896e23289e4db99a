import assert from "node:assert/strict";
import test from "node:test";
import { cornerOf, hit, layOut } from "../src/heatmap/layout";

for (const nodes of [1, 6, 200, 2_000]) {
  test(`every GPU of ${nodes} nodes is found where it is drawn`, () => {
    const gpus = Array.from({ length: nodes }, (_, node) => (node % 3 ? 8 : 4));
    const layout = layOut(gpus, 1_200);
    for (const node of [0, 1, Math.floor(nodes / 2), nodes - 1].filter((each) => each < nodes)) {
      for (const gpu of [0, gpus[node]! - 1]) {
        const { x, y } = cornerOf(layout, node, gpu);
        assert.ok(x >= 0 && x + layout.cell <= layout.width, `${x} of ${layout.width}`);
        assert.ok(y + layout.cell <= layout.height);
        assert.deepEqual(hit(layout, gpus, x + layout.cell / 2, y + layout.cell / 2), { node, gpu });
      }
    }
  });
}

test("a workstation has large cells, two thousand nodes fit a few screens", () => {
  assert.ok(layOut([8], 1_200).cell > 30);
  const many = layOut(Array<number>(2_000).fill(8), 1_200);
  assert.ok(many.height < 2_000, String(many.height));
  assert.equal(many.label, 0);
});

test("a phone shows it, too", () => {
  const layout = layOut(Array<number>(50).fill(8), 340);
  assert.ok(layout.tileWidth <= 340 + 30);
  assert.ok(cornerOf(layout, 0, 7).x + layout.cell <= 340);
});

test("names, gaps and what lies outside are no GPU", () => {
  const layout = layOut([4, 4], 1_200);
  assert.equal(hit(layout, [4, 4], 5, 5), null);
  assert.equal(hit(layout, [4, 4], -5, 5), null);
  assert.equal(hit(layout, [4, 4], 100, 10_000), null);
});

test("a node of many cards takes several rows", () => {
  const layout = layOut([40], 1_200);
  assert.deepEqual(hit(layout, [40], cornerOf(layout, 0, 39).x + 1, cornerOf(layout, 0, 39).y + 1), { node: 0, gpu: 39 });
});

test("a short name of wide letters keeps the room it needs, a long one no more than its share", () => {
  assert.ok(layOut([4], 1_200, 21).label - 10 >= 21);
  assert.ok(layOut([4], 1_200, 900).label <= 150);
});
