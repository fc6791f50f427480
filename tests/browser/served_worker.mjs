// A worker of the pages at a relay that a test plays: made and greeted, with all that it says of itself.

import assert from "node:assert/strict";
import { Kind } from "/static/kvasir/wire/header.js";
import { RelayWorker } from "/static/kvasir/worker/serving/join.js";
import { backboneHello, holdingsOf, outputsOf, ScriptedKernel, ScriptedOutside, settle } from "./scripted_relay.mjs";

// A worker that runs, with the world around it and all that it said of itself.
export function world(config = {}, kernel = new ScriptedKernel()) {
    const outside = new ScriptedOutside();
    const news = [];
    const events = {
        onJoined: () => news.push("joined"),
        onLost: (reason) => news.push(reason),
        onComputed: ({ layer, nJobs, nPairs }) => news.push([layer, nJobs, nPairs]),
        onBackbones: () => news.push(`${worker.nBackbones} backbones`),
    };
    const means = { outside, jitter: () => 0.5 };
    const joining = { relayUrl: "wss://relay.test/relay", token: "kvs-x", ...config };
    const worker = new RelayWorker(joining, holdingsOf(kernel), events, means);
    return { outside, news, kernel, worker, ended: worker.run() };
}

// The same at the relay, with a backbone on edge 1.
export async function serving(config = {}, helloChanges = {}) {
    const found = world(config);
    await settle();
    found.outside.socket.greet();
    await settle();
    found.outside.socket.say(1, backboneHello(helloChanges));
    await settle();
    return { ...found, socket: found.outside.socket };
}

// The results that were said on an edge.
export const results = (socket, edge = 1) => socket.on(edge).filter(({ kind }) => kind === Kind.RESULT);

// Whether a result is the right one for a dispatch.
export function checkResult(result, asked) {
    const experts = Array.from(
        asked.pairIds,
        (id) => ({ 2: [4, 5, 6, 7, 12, 13, 14, 15], 5: [0, 1] })[asked.layer][id],
    );
    assert.deepEqual([result.request, result.layer, result.nPairs], [asked.request, asked.layer, asked.pairIds.length]);
    assert.deepEqual(result.outputs, outputsOf({ ...asked, experts }));
}
