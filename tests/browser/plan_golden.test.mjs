// The plan in JavaScript on the golden cases that Python's is held to (tests/golden/plan/README.md).
// Started by tests/contract/test_plan_golden.py.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { failuresAfter, reconnectDelayS } from "../../frontend/static/kvasir/edge/reconnect.js";
import { keepAliveAction, LookResult } from "../../frontend/static/kvasir/edge/signs_of_life.js";
import { expertRange } from "../../frontend/static/kvasir/slicing/expert_ranges.js";
import { isSettled, mustFinish, nextAction, toState, waitS } from "../../frontend/static/kvasir/worker/agent/plan.js";
import { makePiece, NO_TIMES, workerState } from "../../frontend/static/kvasir/worker/agent/plan_state.js";

const changes = await import("../../frontend/static/kvasir/worker/agent/plan_changes.js");
const { values, cases } = JSON.parse(readFileSync(new URL("../golden/plan/cases.json", import.meta.url), "utf8"));
const ACTIONS = ["Leave", "Register", "Rotate", "Serve", "Beat", "Fetch", "Volunteer", "Look", "PlanMove"];
ACTIONS.push("Withdraw", "Stay", "Drop");

const camelCase = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());

// How the values of Python's kinds are made here. `fields` have JavaScript's names.
const KINDS = {
    WorkerState: (fields) => workerState(fields),
    NotBefore: (fields) => ({ ...NO_TIMES, ...fields }),
    Piece: ({ range, nBytes, ...known }) => makePiece(range, nBytes, known),
    Move: (fields) => ({ isWithdrawn: false, ...fields }),
    Assigned: (fields) => ({ isAssigned: true, ...fields }),
    NothingWanted: (fields) => ({ isAssigned: false, ...fields }),
    Fetched: (fields) => ({ problem: "", ...fields }),
    Demand: (fields) => fields,
    DemandRun: (fields) => fields,
    SiteModel: (fields) => fields,
    ...Object.fromEntries(ACTIONS.map((action) => [action, (fields) => ({ action, ...fields })])),
};

// A value of the file as a value of the plan.
function fromPlain(value) {
    if (value === "inf") return Infinity;
    if (value === "-inf") return -Infinity;
    if (typeof value === "string" && value.startsWith("#")) return fromPlain(values[Number(value.slice(1))]);
    if (Array.isArray(value)) {
        const isRange = value.length === 3 && value.every(Number.isInteger);
        return isRange ? expertRange(...value) : value.map(fromPlain);
    }
    if (typeof value !== "object" || value === null) return value;
    const { is, ...fields } = value;
    const named = Object.entries(fields).map(([name, item]) => [camelCase(name), fromPlain(item)]);
    return KINDS[is](Object.fromEntries(named));
}

const ASK = {
    next_action: nextAction,
    wait_s: waitS,
    to_state: toState,
    is_settled: isSettled,
    must_finish: mustFinish,
    reconnect_delay_s: reconnectDelayS,
    failures_after: failuresAfter,
    keepalive_action: (nowS, heardS, pingedS, [intervalS, deadlineS]) => {
        const action = keepAliveAction(nowS, heardS, pingedS, { intervalS, deadlineS });
        return Object.entries(LookResult).find(([, result]) => result === action)[0];
    },
};

for (const name of new Set(cases.map(({ ask }) => ask))) {
    test(name, () => {
        const ask = ASK[name] ?? changes[camelCase(name)];
        const found = cases.filter((item) => item.ask === name);
        for (const { given, answer } of found) {
            const before = given.map(fromPlain);
            assert.deepEqual(ask(...before), fromPlain(answer), JSON.stringify(before));
            assert.deepEqual(before, given.map(fromPlain), "what was given has changed");
        }
    });
}
