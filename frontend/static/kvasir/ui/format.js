/**
 * Numbers as text in the page's language. All pages use it. Sizes are powers of 1024, credits are microcredits /
 * 1,000,000, moments are Unix milliseconds.
 */

const SIZES = ["byte", "KiB", "MiB", "GiB", "TiB"];

/** @returns {string} the page's language */
function language() {
    return globalThis.document?.documentElement.lang || "en";
}

/**
 * Format a number with at most `digits` decimals.
 * @param {number} value
 * @param {number} [digits]
 */
export function formatNumber(value, digits = 0) {
    return new Intl.NumberFormat(language(), { maximumFractionDigits: digits }).format(value);
}

/**
 * Format a large number briefly: 1.2K, 3.4M.
 * @param {number} value
 */
export function formatCompact(value) {
    const style = value < 10_000 ? {} : /** @type {const} */ ({ notation: "compact", maximumFractionDigits: 1 });
    return new Intl.NumberFormat(language(), { maximumFractionDigits: value < 10 ? 1 : 0, ...style }).format(value);
}

/**
 * Format bytes in three significant digits.
 * @param {number} nBytes
 */
export function formatBytes(nBytes) {
    let [value, unit] = [nBytes, 0];
    while (value >= 1024 && unit < SIZES.length - 1) [value, unit] = [value / 1024, unit + 1];
    if (unit === 0) return interpolate(ngettext("%s byte", "%s bytes", value), [formatNumber(value)]);
    return `${formatNumber(value, value < 10 ? 2 : value < 100 ? 1 : 0)} ${SIZES[unit]}`;
}

/**
 * Format a share from 0 to 1 as a percentage. It shows 100 % and 0 % only for exactly 1 and 0.
 * @param {number} share
 */
export function formatShare(share) {
    const shown = share > 0.999 && share < 1 ? 0.999 : share > 0 && share < 0.001 ? 0.001 : share;
    return new Intl.NumberFormat(language(), { style: "percent", maximumFractionDigits: 1 }).format(shown);
}

/**
 * Format microcredits as credits, with more decimals the smaller they are.
 * @param {number} microcredits
 * @param {number} [leastDigits] the fewest decimals, to align a column
 */
export function formatCredits(microcredits, leastDigits = 0) {
    const credits = microcredits / 1_000_000;
    const digits = Math.max(leastDigits, Math.abs(credits) >= 1000 ? 1 : Math.abs(credits) >= 1 ? 3 : 6);
    const options = { minimumFractionDigits: leastDigits, maximumFractionDigits: digits };
    return new Intl.NumberFormat(language(), options).format(credits);
}

/**
 * Format a span of time by its two largest units.
 * @param {number} seconds
 */
export function formatSpan(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 60) return interpolate(gettext("%s s"), [whole]);
    const minutes = Math.floor(whole / 60);
    if (minutes < 60) return interpolate(gettext("%s min %s s"), [minutes, whole % 60]);
    const hours = Math.floor(minutes / 60);
    if (hours < 48) return interpolate(gettext("%s h %s min"), [hours, minutes % 60]);
    return interpolate(gettext("%s d %s h"), [Math.floor(hours / 24), hours % 24]);
}

/**
 * Format milliseconds to a useful precision.
 * @param {number} ms
 */
export function formatMs(ms) {
    return interpolate(gettext("%s ms"), [formatNumber(ms, ms < 10 ? 1 : 0)]);
}

/**
 * Format a day or a time in the visitor's time zone.
 * @param {number} atMs
 */
export function formatMoment(atMs) {
    return new Intl.DateTimeFormat(language(), { dateStyle: "medium", timeStyle: "short" }).format(atMs);
}
