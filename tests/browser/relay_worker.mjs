// A worker in JavaScript behind a relay: answers each dispatch with its payload's bytes inverted.
// Called by tests/swarm/test_relay_javascript.py with the relay's address; opening and welcome come on standard input.

import { readFileSync } from "node:fs";
import { Kind, decodeFrame, encodeFrame, encodeRecord, records } from "./frames.mjs";

const { opening, welcome } = JSON.parse(readFileSync(0, "utf8"));
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const socket = new WebSocket(process.argv[2]);
socket.binaryType = "arraybuffer";

socket.onopen = () => socket.send(bytes(opening));
socket.onclose = (event) => {
  console.error(`closed ${event.code}: ${event.reason}`);
  process.exit(1);
};
socket.onmessage = (event) => {
  try {
    for (const [edge, data] of records(new Uint8Array(event.data))) if (edge !== 0) answer(edge, decodeFrame(data));
  } catch (error) {
    console.error(String(error));
    process.exit(1);
  }
};

function answer(edge, frame) {
  if (frame.kind === Kind.HELLO) socket.send(encodeRecord(edge, bytes(welcome)));
  if (frame.kind !== Kind.DISPATCH) return;
  const { wireType, request, layer, nPairs, dModel, payload } = frame;
  const fields = { kind: Kind.RESULT, wireType, request, layer, nRows: 0, nPairs, dModel };
  socket.send(encodeRecord(edge, encodeFrame(fields, payload.map((byte) => byte ^ 0xff))));
}
