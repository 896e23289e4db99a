import assert from "node:assert/strict";
import test from "node:test";
import { addressOf, isAlone, isDoneByStandby, othersOf } from "../src/standing";

test("the other schedulers are named once, the master first, and not this one", () => {
  const told = { role: "standby", master: "https://b:8080/", schedulers: ["https://a:8080", "https://b:8080", "https://c:8080"] };
  assert.deepEqual(othersOf(told, "https://a:8080"), ["https://b:8080", "https://c:8080"]);
  assert.deepEqual(othersOf({ role: "master", master: "https://a:8080" }, "https://a:8080"), []);
  assert.deepEqual(othersOf(null, "https://a:8080"), []);
});

test("only web addresses become links", () => {
  assert.equal(addressOf("http://a:8080/x?y"), "http://a:8080");
  for (const text of ["javascript:alert(1)", "data:text/html,x", "a:8080", "", "//evil"]) assert.equal(addressOf(text), "");
});

test("a scheduler that names no other one is alone", () => {
  assert.ok(isAlone({ role: "master" }));
  assert.ok(isAlone({ role: "master", master: "", schedulers: [] }));
  assert.ok(!isAlone({ role: "master", master: "http://a:1" }));
  assert.ok(!isAlone({ role: "standby" }));
});

test("a standby offers reads and what-ifs, and nothing that changes the cluster", () => {
  for (const action of ["task.read", "token.read", "whatif.ask"]) assert.ok(isDoneByStandby(action));
  for (const action of ["task.submit", "task.change", "cluster.change", "alert.change"]) assert.ok(!isDoneByStandby(action));
});
