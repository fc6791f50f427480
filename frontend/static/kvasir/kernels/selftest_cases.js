/**
 * The cases of KX1's self-test and their frozen digests: docs/reference/kx1.md, "Self-test and fingerprint".
 *
 * Called by `selftest.js`. A difference is a fault of the build or the device, never a reason to edit this file. Twin
 * of kvasir/kernels/selftest_digests.py.
 */

/** @import { QuantType } from "./kernel_types.js" */
/** @import { WeightKind } from "./kx1_inputs.js" */

/**
 * @typedef {object} SelfTestCase
 * @property {[QuantType, QuantType, QuantType]} types of gate, up and down
 * @property {WeightKind} kind of the second expert's weights; the first's are plain
 * @property {number} seed
 * @property {{rows: string, first: string, second: string}} digests SHA-256 of the packed rows and of each expert's
 *   outputs, in hex
 */

export const SELF_TEST_SHAPE = { dModel: 512, dFf: 256 };

/** SHA-256 of all digests below, in order. */
export const SELF_TEST_DIGEST = "7a45ced86b8879ec67df5aedd91b2967d7b0c0ec0b941ee76f29dbdc3a1f5858";

/** @type {SelfTestCase[]} */
export const SELF_TEST_CASES = [
    {
        types: ["Q4_K", "Q4_K", "Q6_K"],
        kind: "wild",
        seed: 1000,
        digests: {
            rows: "d4d8ede321a7848aa3fe75439cd113de21bd297fb9234fdd8c9735db4eec8329",
            first: "af8498ed31f4f4825a5c5b92ffc1e46f48429da475d95118021310e3abf4c3a1",
            second: "f10f6b458cd7bebf53d25454fb3d2252017fd13ea07443a1d2c036f7ee23717c",
        },
    },
    {
        types: ["Q5_K", "Q5_K", "Q5_K"],
        kind: "high",
        seed: 2000,
        digests: {
            rows: "d9f51dda158d0c07e1b67b88b86a6961d2108ec3491d25d27442bd610a87558f",
            first: "a6e1f5775e5b153f60bca82b820cf10e643487d52e3a407d4ad6e203b680f953",
            second: "2f5bad2dc759ec7ec744e1c98b99242a877dc77af9e514d973d9efd76a8b6c7c",
        },
    },
    {
        types: ["Q6_K", "Q6_K", "Q4_K"],
        kind: "low",
        seed: 3000,
        digests: {
            rows: "77febbb83eb6779d78c14867cfde4c87a814bf16eae93843a68f709156837bf7",
            first: "e74ac21ee8740eb3830d8e705faeb48f984a67cb1e9b3631ceb2970ab7f20477",
            second: "37c63e58ff9e8ff41b2b13029d213b30dfcfa669992c87d224856b52b3590088",
        },
    },
    {
        types: ["Q8_0", "Q8_0", "Q8_0"],
        kind: "wild",
        seed: 4000,
        digests: {
            rows: "db4c4e998d78d3c530e8070a5aca68984345c58d080a2ef9ddbeed41a6a6bc9c",
            first: "2d70d0f766102825a6aaf31a1d35f1cb00c6716f534918a21a398c13c0ad7775",
            second: "ed0e4b69e07baa565eb03b5659b19f8d3c645018a25431afbbf8bc87bcbc2f05",
        },
    },
];
