/**
 * A slice's manifest: digests, size, layout. `slices/store.js` reads it from /api/manifests and keeps it beside the
 * slice. Every number is checked here. The model's origin is ignored: a page fetches only from its own site.
 */

import { DownloadError } from "../../errors.js";

/** @typedef {import("../agent/plan_state.js").ExpertRange} ExpertRange */
/** @typedef {{position: number, nBytes: number}} Piece  bytes of weights at `position` of the slice */
/** @typedef {{nBytes: number, sha256: string}} ExpertDigest */

/**
 * @typedef {object} SliceManifest A manifest of exactly one slice's experts.
 * @property {string} modelName
 * @property {string} modelFingerprint
 * @property {Map<string, ExpertDigest>} experts by "layer/expert"
 * @property {number} nBytes
 * @property {string} etag
 * @property {number} headerBytes
 * @property {string} headerSha256
 * @property {Piece[]} pieces
 */

export const MANIFEST_MOST_BYTES = 64 << 20;
const FORMAT = "kvasir-manifest-1";
const SLICE_MOST_BYTES = 2 ** 50;
const SHA256 = /^[0-9a-f]{64}$/;
const ETAG = /^"[\x21\x23-\x7e]{1,100}"$/;
const KEY = /^(0|[1-9]\d{0,5})\/(0|[1-9]\d{0,8})$/;

/**
 * Parse the site's answer. Throws DownloadError unless it is valid and for these experts (merged ranges) of this model.
 * @param {Uint8Array} body @param {string} fingerprint @param {readonly ExpertRange[]} ranges @returns {SliceManifest}
 */
export function parseManifest(body, fingerprint, ranges) {
    try {
        const most = MANIFEST_MOST_BYTES;
        if (body.length > most) throw new Error(`${body.length} bytes; at most ${most} are allowed`);
        const found = read(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body)));
        check(found, fingerprint, ranges);
        return found;
    } catch (error) {
        const words = error instanceof Error ? error.message : String(error);
        throw new DownloadError(`the slice's manifest cannot be used: ${words}`, { cause: error });
    }
}

/**
 * Return the bytes of a layer's largest expert.
 * @param {SliceManifest} layout
 * @param {number} layer
 */
export function expertBytes(layout, layer) {
    let most = 0;
    for (const [key, digest] of layout.experts) {
        if (key.startsWith(`${layer}/`)) most = Math.max(most, digest.nBytes);
    }
    return most;
}

/** @param {any} content @returns {SliceManifest} */
function read(content) {
    if (content?.format !== FORMAT) throw new Error(`not a manifest: its format is not "${FORMAT}"`);
    const { model, fingerprint, experts, slice } = content;
    if (typeof model !== "string" || typeof fingerprint !== "string" || typeof experts !== "object") {
        throw new Error("a manifest needs model, fingerprint and experts");
    }
    if (!ETAG.test(slice.etag) || !SHA256.test(slice.header_sha256)) {
        throw new Error("its slice needs an etag in quotes and header_sha256 of 64 hex digits");
    }
    const [nBytes, headerBytes] = counts([slice.bytes, slice.header_bytes], 2);
    return {
        modelName: model,
        modelFingerprint: fingerprint,
        experts: new Map(Object.entries(experts).map(([key, entry]) => [checkedKey(key), readDigest(key, entry)])),
        nBytes,
        etag: slice.etag,
        headerBytes,
        headerSha256: slice.header_sha256,
        pieces: slice.pieces.map((/** @type {unknown} */ row) => {
            const [position, length] = counts(row, 2);
            return { position, nBytes: length };
        }),
    };
}

/** @param {string} key */
function checkedKey(key) {
    if (!KEY.test(key)) {
        throw new Error(`${key.slice(0, 80)} is not an expert; experts are written layer/expert, like 0/3`);
    }
    return key;
}

/** @param {string} key @param {any} entry @returns {ExpertDigest} */
function readDigest(key, entry) {
    const { bytes, sha256 } = entry ?? {};
    if (!Number.isSafeInteger(bytes) || bytes < 1 || typeof sha256 !== "string" || !SHA256.test(sha256)) {
        throw new Error(`expert ${key} needs bytes (above 0) and sha256 (64 hex digits)`);
    }
    return { nBytes: bytes, sha256 };
}

/**
 * Return a row of `n` whole numbers in the range of byte counts.
 * @param {unknown} row
 * @param {number} n
 * @returns {number[]}
 */
function counts(row, n) {
    const shown = String(JSON.stringify(row)).slice(0, 80);
    if (!Array.isArray(row) || row.length !== n) throw new Error(`${shown} is not ${n} numbers`);
    if (row.some((item) => !Number.isInteger(item) || item < 0 || item > SLICE_MOST_BYTES)) {
        throw new Error(`${shown} has values that are not sizes or positions`);
    }
    return row;
}

/** @param {SliceManifest} found @param {string} fingerprint @param {readonly ExpertRange[]} ranges */
function check(found, fingerprint, ranges) {
    if (found.modelFingerprint !== fingerprint) {
        throw new Error(`it is of model ${found.modelFingerprint}, not of ${fingerprint}`);
    }
    const nWanted = ranges.reduce((sum, item) => sum + item.stop - item.start, 0);
    if (found.experts.size !== nWanted || !ranges.every((item) => hasAll(found, item))) {
        throw new Error(`it has ${found.experts.size} experts, which are not the ${nWanted} asked for`);
    }
    let stop = found.headerBytes;
    for (const piece of found.pieces) {
        if (piece.position < stop) throw new Error("its pieces overlap, or lie outside the slice");
        stop = piece.position + piece.nBytes;
    }
    if (found.pieces.length === 0 || found.headerBytes === 0 || stop > found.nBytes) {
        throw new Error("its pieces overlap, or lie outside the slice");
    }
    const weights = found.pieces.reduce((sum, piece) => sum + piece.nBytes, 0);
    const hashed = [...found.experts.values()].reduce((sum, digest) => sum + digest.nBytes, 0);
    if (weights !== hashed) throw new Error(`its pieces have ${weights} bytes, its experts ${hashed}`);
}

/** @param {SliceManifest} found @param {ExpertRange} range */
function hasAll(found, { layer, start, stop }) {
    for (let expert = start; expert < stop; expert++) {
        if (!found.experts.has(`${layer}/${expert}`)) return false;
    }
    return true;
}
