/**
 * CRC-32 (that of zlib and PNG), sixteen bytes a step: about 2 GB/s. Every frame's header has one. It does not protect
 * against forgery.
 */

const POLYNOMIAL = 0xedb88320;
const STEP_BYTES = 16;
const WORD_BYTES = 4;
const STEP_WORDS = STEP_BYTES / WORD_BYTES;

/** Sixteen tables of 256, one after another: table k has the effect of a byte that k bytes follow. */
const TABLE = makeTable();

/** @returns {Int32Array} */
function makeTable() {
    const table = new Int32Array(STEP_BYTES * 256);
    for (let byte = 0; byte < 256; byte++) {
        let crc = byte;
        for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ POLYNOMIAL : crc >>> 1;
        table[byte] = crc;
    }
    for (let i = 256; i < table.length; i++) {
        const before = table[i - 256];
        table[i] = (before >>> 8) ^ table[before & 0xff];
    }
    return table;
}

/**
 * Return the checksum of `data`, continued from the checksum of the bytes before it.
 * @param {Uint8Array} data
 * @param {number} [before]
 * @returns {number} u32
 */
export function crc32(data, before = 0) {
    // whole words are read where they are aligned, a byte at a time before and after them
    const start = Math.min(-data.byteOffset & (WORD_BYTES - 1), data.length);
    const nSteps = Math.floor((data.length - start) / STEP_BYTES);
    const stop = start + nSteps * STEP_BYTES;
    let crc = bytewise(data.subarray(0, start), ~before);
    if (nSteps > 0) crc = stepwise(new Int32Array(data.buffer, data.byteOffset + start, nSteps * STEP_WORDS), crc);
    return ~bytewise(data.subarray(stop), crc) >>> 0;
}

/** @param {Uint8Array} data @param {number} crc @returns {number} */
function bytewise(data, crc) {
    for (let at = 0; at < data.length; at++) crc = (crc >>> 8) ^ TABLE[(crc ^ data[at]) & 0xff];
    return crc;
}

/**
 * @param {Int32Array} words whole steps, little-endian, as on all platforms with a browser
 * @param {number} crc
 * @returns {number}
 */
function stepwise(words, crc) {
    for (let at = 0; at < words.length; at += STEP_WORDS) {
        crc =
            afterWord(words[at] ^ crc, 3) ^
            afterWord(words[at + 1], 2) ^
            afterWord(words[at + 2], 1) ^
            afterWord(words[at + 3], 0);
    }
    return crc;
}

/**
 * Return the effect of a word on the checksum.
 * @param {number} word
 * @param {number} nAfter words that follow it in its step
 * @returns {number}
 */
function afterWord(word, nAfter) {
    const table = 4 * 256 * nAfter;
    return (
        TABLE[table + 768 + (word & 0xff)] ^
        TABLE[table + 512 + ((word >>> 8) & 0xff)] ^
        TABLE[table + 256 + ((word >>> 16) & 0xff)] ^
        TABLE[table + (word >>> 24)]
    );
}
