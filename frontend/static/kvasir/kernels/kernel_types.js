/**
 * The interface of expert kernels: two backends (`gpu/kernel.js`, `wasm/kernel.js`), and `kernel_choice.js` in front of
 * both. Types only. Every kernel gives the bits of docs/reference/kx1.md, so it does not matter which of them computed a row.
 */

/** @typedef {"Q4_K" | "Q5_K" | "Q6_K" | "Q8_0"} QuantType */

/**
 * One expert: the bytes of its matrices as they are in the GGUF file. Gate and up are [dFf, dModel], down is
 * [dModel, dFf].
 *
 * @typedef {object} ExpertWeights
 * @property {number} dModel
 * @property {number} dFf
 * @property {{gate: QuantType, up: QuantType, down: QuantType}} types
 * @property {Uint8Array} gate
 * @property {Uint8Array} up
 * @property {Uint8Array} down
 */

/**
 * Pair i asks for expert `pairKeys[i]` of row `pairRows[i]`.
 *
 * @typedef {object} ComputeCall
 * @property {Uint8Array} rows packed KX1 rows, `nRows` times dModel / 256 * 261 bytes
 * @property {number} nRows
 * @property {number} dModel
 * @property {Uint32Array} pairRows [nPairs]
 * @property {string[]} pairKeys [nPairs]
 */

/**
 * @typedef {object} ExpertKernel
 * @property {"webgpu" | "wasm" | "both"} backend where the weights are
 * @property {"kx1"} name
 * @property {string} fingerprint 64 hex digits, the same for every KX1 of a version
 * @property {string} description one line for people and logs: device or build, threads
 * @property {(key: string, weights: ExpertWeights) => Promise<void>} load loads one expert; copies its bytes. Throws
 * KernelMemoryError if there is no room, with all other experts still loaded, and KernelError for weights that KX1 does
 * not support, for a damaged scale and for a key that is loaded already.
 * @property {(key: string) => void} unload unloads one expert, if it is loaded; calls in flight still finish
 * @property {(call: ComputeCall) => Promise<Float32Array>} compute one output row per pair, [nPairs * dModel], in the
 *   order of the pairs, unweighted. Several calls may be in flight. Throws KernelError for rows that KX1 refuses, and for row numbers and keys that do not exist; KernelLostError if the kernel is lost meanwhile.
 * @property {number} loadedBytes of weights, as in the file
 * @property {number} capacityBytes of weights at most
 * @property {() => void} close frees everything; calls in flight fail with KernelLostError
 * @property {Promise<string>} lost resolves with the reason if the device or a thread is lost, and never otherwise
 */

export {};
