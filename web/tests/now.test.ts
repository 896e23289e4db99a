import assert from "node:assert/strict";
import test from "node:test";
import { momentShown } from "../src/now";

test("ages stand still while the scheduler is away, at the moment the page is from", () => {
  assert.equal(momentShown(90_000, "live", 60_000), 90_000);
  assert.equal(momentShown(90_000, "lost", 60_000), 60_000);
  assert.equal(momentShown(90_000, "locked", 60_000), 60_000);
});

test("a page that has heard nothing so far has no such moment", () => {
  assert.equal(momentShown(90_000, "connecting", 0), 90_000);
  assert.equal(momentShown(90_000, "lost", 0), 90_000);
});
