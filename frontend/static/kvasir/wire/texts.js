/**
 * Texts as the wire carries them: UTF-8, short, without control characters or lone surrogates. Twin of has_controls
 * and clipped in kvasir/wire/frames.py. Payloads and everyone who sends a reason use it.
 */

import { MAX_TEXT_BYTES } from "./frames.js";

const ENCODER = new TextEncoder();
const CONTROL = /[\p{Control}\p{Surrogate}]/u;
const CONTROLS = new RegExp(CONTROL.source, "gu");

/**
 * Whether a text holds control characters (U+0000 to U+001F, U+007F to U+009F) or lone surrogates.
 * @param {string} text
 * @returns {boolean}
 */
export function hasControls(text) {
    return CONTROL.test(text);
}

/**
 * The message as it may travel: no control characters, at most MAX_TEXT_BYTES bytes of UTF-8.
 * @param {string} message
 * @returns {string}
 */
export function clipped(message) {
    const data = ENCODER.encode(message.replace(CONTROLS, " "));
    let end = Math.min(data.length, MAX_TEXT_BYTES);
    while (end < data.length && (data[end] & 0xc0) === 0x80) end -= 1; // never within a character
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(data.subarray(0, end));
}
