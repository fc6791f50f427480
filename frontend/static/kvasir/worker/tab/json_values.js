/**
 * Values out of a site's JSON, each of the kind that is needed or a TypeError that says what came instead.
 * market_client.js reads answers with these; they never convert one kind into another.
 */

/** @param {unknown} value @returns {Record<string, unknown>} */
export function record(value) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw wrong("an object", value);
    return /** @type {Record<string, unknown>} */ (value);
}

/** @param {unknown} value @returns {unknown[]} */
export function list(value) {
    if (!Array.isArray(value)) throw wrong("a list", value);
    return value;
}

/** @param {unknown} value @returns {string} */
export function text(value) {
    if (typeof value !== "string") throw wrong("a text", value);
    return value;
}

/** @param {unknown} value @returns {number} */
export function number(value) {
    if (typeof value !== "number" || !Number.isFinite(value)) throw wrong("a number", value);
    return value;
}

/** @param {unknown} value @returns {number} */
export function integer(value) {
    if (typeof value !== "number" || !Number.isSafeInteger(value)) throw wrong("a whole number", value);
    return value;
}

/** @param {string} wanted @param {unknown} value @returns {TypeError} */
function wrong(wanted, value) {
    const shown = value === null ? "null" : Array.isArray(value) ? "a list" : typeof value;
    return new TypeError(`${wanted} was expected, not ${shown}`);
}
