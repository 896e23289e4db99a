import assert from "node:assert/strict";
import test from "node:test";
import { en, type MessageKey } from "../src/i18n/en";
import { zh } from "../src/i18n/zh";

/** Without the plurals, of which Chinese has none. */
function holes(text: string): string[] {
  return [...new Set([...text.matchAll(/\{(\w+)\}/g)].map((found) => found[1] ?? ""))].sort();
}

test("both languages have the same messages", () => {
  assert.deepEqual(Object.keys(zh).sort(), Object.keys(en).sort());
});

test("a message names the same values in both languages", () => {
  for (const [key, text] of Object.entries(en)) assert.deepEqual(holes(zh[key as keyof typeof zh]), holes(text), key);
});

test("no message is empty, and Chinese is not English left over", () => {
  const alike = new Set(["nav.docs", "top.language", "cluster.waitTail", "alerts.onlySubject"]);
  for (const [key, text] of Object.entries(zh)) {
    assert.ok(text.trim(), key);
    if (!alike.has(key)) assert.match(text, /[\u4e00-\u9fff]|GPU/, key);
  }
});

test("a word of a newer server is shown as it is", async () => {
  Object.defineProperty(globalThis, "navigator", { value: { language: "en" }, configurable: true }); // Node 20 has none
  const { t, word } = await import("../src/i18n");
  assert.equal(word("status", "deep_sleep"), "deep sleep");
  assert.equal(word("status", null), "");
  assert.equal(t("alerts.dozing" as MessageKey), "dozing");
});
