/**
 * Who may use a worker, and which requests it takes: pure checks of frames against what the worker holds. Twin of
 * kvasir/worker/admission.py. connection.js asks before anything is queued; values inside rows are left to the kernel.
 */

import { FaultCode, RefuseCode, Role, fault, refuse } from "../wire/wire_frames.js";
import { WireType, wireTypeName } from "../wire/wire_header.js";
import { resultBytes } from "../wire/wire_split.js";

/** @typedef {import("../wire/wire_frames.js").Dispatch} Dispatch */
/** @typedef {import("../wire/wire_frames.js").Fault} Fault */
/** @typedef {import("./compute.js").Holdings} Holdings */

/**
 * Why this hello is refused, naming what disagrees and both values; null when it is welcome.
 * @param {import("../wire/wire_frames.js").Hello} hello
 * @param {Holdings} holdings
 * @returns {import("../wire/wire_frames.js").Refuse | null}
 */
export function helloRefusal(hello, holdings) {
    if (hello.role !== Role.BACKBONE) {
        return refuse(RefuseCode.ROLE, "role is WORKER, this worker serves BACKBONE");
    }
    if (hello.modelFingerprint !== holdings.modelFingerprint) {
        const [theirs, ours] = [hello.modelFingerprint, holdings.modelFingerprint];
        const message = `model fingerprint: the backbone has ${theirs}, this worker's slice is of ${ours}`;
        return refuse(RefuseCode.MODEL, message);
    }
    const { kernel } = holdings;
    if (hello.kernelFingerprint !== kernel.fingerprint) {
        const theirs = `${hello.kernel} ${hello.kernelFingerprint}`;
        const ours = `${kernel.name} ${kernel.fingerprint}`;
        return refuse(RefuseCode.KERNEL, `kernel fingerprint: the backbone has ${theirs}, this worker has ${ours}`);
    }
    return null;
}

/**
 * Why this dispatch is not computed, or null. `peer` is what the backbone accepts.
 * @param {Dispatch} dispatch
 * @param {Holdings} holdings
 * @param {Readonly<import("../wire/wire_header.js").Limits>} peer
 * @returns {Fault | null}
 */
export function dispatchFault(dispatch, holdings, peer) {
    const { request, layer, rowFormat, dModel, nRows, pairRows, pairIds } = dispatch;
    const loaded = holdings.layers.get(layer);
    if (loaded === undefined) {
        const held = [...holdings.layers.keys()].sort((a, b) => a - b).join(", ");
        return fault(request, FaultCode.UNKNOWN_LAYER, `layer ${layer} is not held here; ${held} are`.slice(0, 1000));
    }
    if (rowFormat !== WireType.KX1 || dModel !== holdings.dModel) {
        const message =
            `rows are ${wireTypeName(rowFormat)} of ${dModel} values, ` + `KX1 of ${holdings.dModel} are needed`;
        return fault(request, FaultCode.BAD_ROWS, message);
    }
    const [nPairs, answerBytes] = [pairIds.length, resultBytes(pairIds.length, dModel)];
    if (answerBytes > peer.maxPayloadBytes || nPairs > peer.maxPairs) {
        const message =
            `the answer would have ${nPairs} pairs in ${answerBytes} bytes; ` +
            `the backbone takes ${peer.maxPairs} pairs in ${peer.maxPayloadBytes} bytes`;
        return fault(request, FaultCode.TOO_LARGE, message);
    }
    const wrong = outside("row number", pairRows, nRows) ?? outside("local id", pairIds, loaded.keys.length);
    return wrong === null ? null : fault(request, FaultCode.BAD_IDS, wrong);
}

/** @param {string} what @param {Uint32Array} numbers @param {number} count @returns {string | null} */
function outside(what, numbers, count) {
    const wrong = numbers.find((number) => number >= count);
    return wrong === undefined ? null : `${what} ${wrong} does not exist, there are ${count}`;
}
