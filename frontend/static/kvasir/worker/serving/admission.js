/**
 * Which backbones and requests a worker accepts: pure checks of frames against its holdings. connection.js calls them
 * before anything is queued. The kernel checks the values inside rows.
 */

import { messageOf } from "../../errors.js";
import { checkSumRequest } from "../../kernels/sums.js";
import { clipped, FaultCode, fault, RefuseCode, Role, refuse } from "../../wire/frames.js";
import { WireType, wireTypeName } from "../../wire/header.js";
import { answerBytes } from "../../wire/split.js";

/** @typedef {import("../../wire/frames.js").Dispatch} Dispatch */
/** @typedef {import("../../wire/frames.js").Fault} Fault */
/** @typedef {import("./compute.js").Holdings} Holdings */

/**
 * Return the refusal of a hello, which names the part that differs and both values, or null to accept it.
 * @param {import("../../wire/frames.js").Hello} hello
 * @param {Holdings} holdings
 * @returns {import("../../wire/frames.js").Refuse | null}
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
 * Return the fault for a dispatch that cannot be computed, or null. `peer` are the backbone's limits.
 * @param {Dispatch} dispatch
 * @param {Holdings} holdings
 * @param {Readonly<import("../../wire/header.js").Limits>} peer
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
    const large = tooLarge(dispatch, peer);
    if (large !== null) return fault(request, FaultCode.TOO_LARGE, large);
    const wrong = outside("row number", pairRows, nRows) ?? outside("local id", pairIds, loaded.keys.length);
    if (wrong !== null) return fault(request, FaultCode.BAD_IDS, wrong);
    const bad = badOrder(dispatch);
    return bad === null ? null : fault(request, FaultCode.BAD_ROWS, bad);
}

/** @param {Dispatch} dispatch @param {Readonly<import("../../wire/header.js").Limits>} peer @returns {string | null} */
function tooLarge(dispatch, peer) {
    const [nPairs, nBytes] = [dispatch.pairIds.length, answerBytes(dispatch)];
    const nRows = dispatch.sums === null ? 0 : dispatch.nRows; // without sums, outputs are counted as pairs
    if (nBytes <= peer.maxPayloadBytes && nPairs <= peer.maxPairs && nRows <= peer.maxRows) return null;
    return (
        `the answer would have ${nPairs} pairs and ${nRows} rows of sums in ${nBytes} bytes; ` +
        `the backbone takes ${peer.maxPairs} pairs and ${peer.maxRows} rows in ${peer.maxPayloadBytes} bytes`
    );
}

/** @param {Dispatch} dispatch @returns {string | null} why its order of sums is invalid, or null */
function badOrder({ sums, pairRows, nRows }) {
    if (sums === null) return null;
    try {
        checkSumRequest(sums.weights, pairRows, sums.exponents, nRows);
        return null;
    } catch (error) {
        return clipped(messageOf(error));
    }
}

/** @param {string} what @param {Uint32Array} numbers @param {number} count @returns {string | null} */
function outside(what, numbers, count) {
    const wrong = numbers.find((number) => number >= count);
    return wrong === undefined ? null : `${what} ${wrong} does not exist, there are ${count}`;
}
