/**
 * Half-precision floats as bits, rounded as numpy rounds them (to nearest, ties to even). The compute queue uses them
 * when a backbone asks for f16. They are bits because not every browser has a Float16Array.
 */

const F32_SIGN = 0x8000_0000;
/** From these bits on (of an f32 without its sign) a value rounds to infinity, or is infinite or NaN. */
const F32_TOO_LARGE = 0x477f_f000;
/** The smallest f32 that is a normal f16. */
const F32_NORMAL = 0x3880_0000;
/** Half of the smallest f16: this and everything below rounds to zero. */
const F32_TINY = 0x3300_0000;
const EXPONENT_SHIFT = 112 << 23;
const FRACTION = 0x007f_ffff;
const HIDDEN = 0x0080_0000;

/**
 * Return the bits of the f16 nearest to a finite f32 below 65520.
 * @param {number} bits of the f32
 * @returns {number} u16
 */
function halfOfBits(bits) {
    const sign = (bits & F32_SIGN) >>> 16;
    const magnitude = bits & ~F32_SIGN;
    if (magnitude <= F32_TINY) return sign;
    if (magnitude >= F32_NORMAL) return sign | roundedShift(magnitude - EXPONENT_SHIFT, 13);
    return sign | roundedShift((magnitude & FRACTION) | HIDDEN, 126 - (magnitude >>> 23));
}

/** @param {number} value @param {number} shift @returns {number} value / 2^shift, ties to even */
function roundedShift(value, shift) {
    return (value + (1 << (shift - 1)) - 1 + ((value >>> shift) & 1)) >>> shift;
}

/**
 * Return an f16 as an f32.
 * @param {number} half bits of a finite f16
 * @returns {number}
 */
export function floatOfHalf(half) {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >>> 10) & 0x1f;
    const fraction = half & 0x3ff;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    return sign * (1024 + fraction) * 2 ** (exponent - 25);
}

/**
 * Return the outputs for a reply in f16: all rows as f16 bits or, if a row does not fit, as f32 in which each row that
 * fits is rounded to f16. So a row's values never depend on other rows of the frame.
 * @param {Float32Array} outputs [nPairs * dModel]
 * @param {number} dModel
 * @returns {Uint16Array | Float32Array} the same shape
 */
export function f16Reply(outputs, dModel) {
    const bits = new Uint32Array(outputs.buffer, outputs.byteOffset, outputs.length);
    const halves = new Uint16Array(outputs.length);
    /** @type {Set<number>} */
    const unfit = new Set();
    for (let start = 0; start < bits.length; start += dModel) {
        const end = start + dModel;
        for (let at = start; at < end; at++) {
            if ((bits[at] & ~F32_SIGN) >= F32_TOO_LARGE) {
                unfit.add(start);
                break;
            }
            halves[at] = halfOfBits(bits[at]);
        }
    }
    return unfit.size === 0 ? halves : partlyRounded(outputs, halves, unfit, dModel);
}

/**
 * @param {Float32Array} outputs
 * @param {Uint16Array} halves
 * @param {Set<number>} unfit starts of the rows that are not rounded
 * @param {number} dModel
 * @returns {Float32Array}
 */
function partlyRounded(outputs, halves, unfit, dModel) {
    const rounded = outputs.slice();
    for (let start = 0; start < outputs.length; start += dModel) {
        if (unfit.has(start)) continue;
        for (let at = start; at < start + dModel; at++) rounded[at] = signedFloat(halves[at]);
    }
    return rounded;
}

/** @param {number} half @returns {number} with the sign of a zero */
function signedFloat(half) {
    return half === 0x8000 ? -0 : floatOfHalf(half);
}
