// Frames and records of the wire in JavaScript, written from docs/wire.md and docs/relay.md alone: a second opinion.
// `relay_worker.mjs` speaks with it. It knows the header and never looks into a payload.

export const HEADER_BYTES = 36;
export const RECORD_BYTES = 8;
export const Kind = Object.freeze({ HELLO: 1, WELCOME: 2, DISPATCH: 4, RESULT: 5 });
const MAGIC = 0x5253564b; // "KVSR", little-endian
const VERSION = 1;
const CHECKED_BYTES = 32;

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});

function crc32(...parts) {
  let crc = 0xffffffff;
  for (const part of parts) for (const byte of part) crc = CRC_TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

// The bytes of a frame. `fields`: kind, wireType, request, layer, nRows, nPairs, dModel.
export function encodeFrame(fields, payload) {
  const data = new Uint8Array(HEADER_BYTES + payload.length);
  const view = new DataView(data.buffer);
  view.setUint32(0, MAGIC, true);
  data.set([VERSION, fields.kind, fields.wireType, 0], 4);
  const numbers = [fields.request, fields.layer, fields.nRows, fields.nPairs, fields.dModel, payload.length];
  numbers.forEach((number, i) => view.setUint32(8 + 4 * i, number, true));
  data.set(payload, HEADER_BYTES);
  view.setUint32(CHECKED_BYTES, crc32(data.subarray(0, CHECKED_BYTES), payload), true);
  return data;
}

// The fields of a frame and a view of its payload. Throws when length or checksum are not the header's.
export function decodeFrame(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  if (view.getUint32(0, true) !== MAGIC || data[4] !== VERSION) throw new Error("not a frame of wire version 1");
  const payload = data.subarray(HEADER_BYTES);
  const announced = view.getUint32(28, true);
  if (announced !== payload.length) throw new Error(`${announced} bytes announced, ${payload.length} came`);
  const found = crc32(data.subarray(0, CHECKED_BYTES), payload);
  if (found !== view.getUint32(CHECKED_BYTES, true)) throw new Error(`checksum of ${payload.length} bytes is wrong`);
  const [request, layer, nRows, nPairs, dModel] = [8, 12, 16, 20, 24].map((at) => view.getUint32(at, true));
  return { kind: data[5], wireType: data[6], request, layer, nRows, nPairs, dModel, payload };
}

// One frame as a message of one record.
export function encodeRecord(edge, frame) {
  const data = new Uint8Array(RECORD_BYTES + frame.length);
  const view = new DataView(data.buffer);
  view.setUint32(0, edge, true);
  view.setUint32(4, frame.length, true);
  data.set(frame, RECORD_BYTES);
  return data;
}

// [edge, frame bytes] of every record in a message.
export function* records(message) {
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  for (let at = 0; at < message.length; ) {
    const stop = at + RECORD_BYTES + view.getUint32(at + 4, true);
    if (stop > message.length) throw new Error(`a record ends at ${stop} of ${message.length} bytes`);
    yield [view.getUint32(at, true), message.subarray(at + RECORD_BYTES, stop)];
    at = stop;
  }
}
