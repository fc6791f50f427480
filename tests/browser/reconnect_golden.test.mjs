// Reconnecting in JavaScript on the golden cases that Python's is held to (tests/golden/reconnect/README.md).
// Started by tests/unit/test_reconnect.py.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { failuresAfter, reconnectDelayS } from "../../frontend/static/kvasir/edge/reconnect.js";

const cases = JSON.parse(readFileSync(new URL("../golden/reconnect/cases.json", import.meta.url), "utf8"));

test("JavaScript waits as long as the golden cases", () => {
  for (const { case: name, ends, waits } of cases) {
    let nFailures = 0;
    const found = ends.map(([lastedS, jitter]) => {
      nFailures = failuresAfter(nFailures, lastedS);
      return [nFailures, reconnectDelayS(nFailures, jitter)];
    });
    assert.deepEqual(found, waits, name);
  }
});
