import assert from "node:assert/strict";
import { test } from "node:test";

test("an address that cannot be decoded shows a page, too", async () => {
  Object.assign(globalThis, { location: { pathname: "/tasks/%E0%A4%A", search: "?q=1", origin: "http://here" } });
  const { route } = await import("../src/router");
  assert.equal(route.value.view, "tasks");
  assert.equal(route.value.id, "%E0%A4%A");
});
