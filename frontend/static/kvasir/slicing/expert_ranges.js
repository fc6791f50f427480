/**
 * Ranges of experts, the unit of coverage: half-open, as plain frozen objects. The wire, the plan and the market client
 * use them.
 */

/** @typedef {{readonly layer: number, readonly start: number, readonly stop: number}} ExpertRange */

/**
 * Return the range of experts `start` up to, not including, `stop` of one layer.
 * @param {number} layer
 * @param {number} start
 * @param {number} stop
 * @returns {ExpertRange}
 * @throws {RangeError} if it is empty or has a number that is not an integer from 0
 */
export function expertRange(layer, start, stop) {
    if (![layer, start, stop].every(Number.isInteger) || layer < 0 || start < 0 || stop <= start) {
        throw new RangeError(
            `expert range ${layer}:${start}-${stop} is not valid: the layer must be 0 or more and 0 <= start < stop`,
        );
    }
    return Object.freeze({ layer, start, stop });
}

/**
 * @param {ExpertRange} range
 * @returns {number}
 */
export function nExperts(range) {
    return range.stop - range.start;
}

/**
 * Compare by layer, start and stop; 0 for equal ranges.
 * @param {ExpertRange} one
 * @param {ExpertRange} other
 * @returns {number}
 */
export function compareRanges(one, other) {
    return one.layer - other.layer || one.start - other.start || one.stop - other.stop;
}

/**
 * @param {ExpertRange} one
 * @param {ExpertRange} other
 * @returns {boolean}
 */
export function isSameRange(one, other) {
    return compareRanges(one, other) === 0;
}

/**
 * Return whether both lists hold the same ranges in the same order.
 * @param {readonly ExpertRange[]} some
 * @param {readonly ExpertRange[]} others
 * @returns {boolean}
 */
export function areSameRanges(some, others) {
    return some.length === others.length && some.every((range, i) => isSameRange(range, others[i]));
}

/**
 * @param {readonly ExpertRange[]} ranges
 * @param {ExpertRange} range
 * @returns {boolean}
 */
export function includesRange(ranges, range) {
    return ranges.some((item) => isSameRange(item, range));
}

/**
 * Return the number of experts that are in both.
 * @param {ExpertRange} one
 * @param {ExpertRange} other
 * @returns {number}
 */
export function nShared(one, other) {
    if (one.layer !== other.layer) return 0;
    return Math.max(0, Math.min(one.stop, other.stop) - Math.max(one.start, other.start));
}

/**
 * Return the same experts as sorted ranges that neither overlap nor touch within a layer.
 * @param {Iterable<ExpertRange>} ranges
 * @returns {readonly ExpertRange[]}
 */
export function mergeRanges(ranges) {
    /** @type {ExpertRange[]} */
    const merged = [];
    for (const range of [...ranges].sort(compareRanges)) {
        const last = merged.at(-1);
        if (last !== undefined && last.layer === range.layer && range.start <= last.stop) {
            merged[merged.length - 1] = expertRange(last.layer, last.start, Math.max(last.stop, range.stop));
        } else {
            merged.push(range);
        }
    }
    return merged;
}
