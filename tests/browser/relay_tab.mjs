// The pages' worker behind a real relay, with a kernel whose outputs say what it was asked: each code of the row, and
// 1000 times the expert. Called by tests/swarm/test_relay_javascript.py with relay, token and model as JSON on its
// standard input; each line of that afterwards is a command, each line of its standard output what happened.

import { createInterface } from "node:readline";
import { RelayWorker } from "/static/kvasir/worker/serving/join.js";
import { holdingsOf, ScriptedKernel } from "./scripted_relay.mjs";

const say = (event, facts = {}) => console.log(JSON.stringify({ event, ...facts }));
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const told = JSON.parse((await lines.next()).value);
const kernel = Object.assign(new ScriptedKernel(), { fingerprint: told.kernel });
const holdings = { ...holdingsOf(kernel, told.d_model), modelFingerprint: told.model };
const events = {
    onJoined: () => say("joined"),
    onLost: (reason) => say("lost", { reason }),
    onBackbones: () => say("backbones", { n: worker.nBackbones }),
};
const worker = new RelayWorker({ relayUrl: told.url, token: told.token }, holdings, events);
const ended = worker.run();

for await (const line of lines) {
    if (line === "pause" || line === "resume") worker.setPaused(line === "pause");
    if (line === "stop") break;
}
worker.stop("told to stop");
await ended;
say("ended");
process.exit(0);
