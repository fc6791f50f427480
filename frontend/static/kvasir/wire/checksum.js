// CRC-32 (that of zlib and PNG), eight bytes a step. Twin of kvasir/checksum.py.
// The wire's header uses it for every frame; it is no protection against a forger.

const POLYNOMIAL = 0xedb88320;
const STEP = 8;

/** Eight tables of 256: table k says what a byte does to the sum when k bytes follow it. */
const TABLES = makeTables();

/** @returns {readonly Int32Array[]} */
function makeTables() {
    const tables = Array.from({ length: STEP }, () => new Int32Array(256));
    for (let byte = 0; byte < 256; byte++) {
        let crc = byte;
        for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ POLYNOMIAL : crc >>> 1;
        tables[0][byte] = crc;
    }
    for (let k = 1; k < STEP; k++) {
        for (let byte = 0; byte < 256; byte++) {
            const before = tables[k - 1][byte];
            tables[k][byte] = (before >>> 8) ^ tables[0][before & 0xff];
        }
    }
    return tables;
}

/**
 * The checksum of `data`, going on from the checksum of what came before it.
 * @param {Uint8Array} data
 * @param {number} [before]
 * @returns {number} u32
 */
export function crc32(data, before = 0) {
    const [t0, t1, t2, t3, t4, t5, t6, t7] = TABLES;
    const end = data.length - (data.length % STEP);
    let crc = ~before;
    let at = 0;
    for (; at < end; at += STEP) {
        crc ^= data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24);
        crc =
            t7[crc & 0xff] ^
            t6[(crc >>> 8) & 0xff] ^
            t5[(crc >>> 16) & 0xff] ^
            t4[crc >>> 24] ^
            t3[data[at + 4]] ^
            t2[data[at + 5]] ^
            t1[data[at + 6]] ^
            t0[data[at + 7]];
    }
    for (; at < data.length; at++) crc = (crc >>> 8) ^ t0[(crc ^ data[at]) & 0xff];
    return ~crc >>> 0;
}
