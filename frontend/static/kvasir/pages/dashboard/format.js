// Numbers, sizes and times in the visitor's language. Used by all parts of the dashboard and the operator's page; it
// draws nothing.

const LANGUAGE = document.documentElement.lang || "en";
const whole = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat(LANGUAGE, { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat(LANGUAGE, { notation: "compact", maximumSignificantDigits: 3 });
const moment = new Intl.DateTimeFormat(LANGUAGE, { dateStyle: "medium", timeStyle: "short" });

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

export const NOTHING = "–";

/**
 * @param {number} value
 * @returns {string} a whole number
 */
export function formatCount(value) {
    return whole.format(value);
}

/**
 * @param {number} value
 * @returns {string} three digits at most, large ones as 12.3K
 */
export function formatRate(value) {
    return value >= 10_000 ? compact.format(value) : value < 0.01 ? short.format(0) : short.format(value);
}

/**
 * @param {number | null} seconds
 * @returns {string}
 */
export function formatSeconds(seconds) {
    if (seconds === null) return NOTHING;
    if (seconds < 1) return `${short.format(seconds * 1000)} ms`;
    return `${short.format(seconds)} s`;
}

/**
 * @param {number | null} ms
 * @returns {string}
 */
export function formatMs(ms) {
    return ms === null ? NOTHING : formatSeconds(ms / 1000);
}

/**
 * @param {number} bytes
 * @returns {string}
 */
export function formatBytes(bytes) {
    let size = bytes;
    let unit = 0;
    while (size >= 1024 && unit < SIZES.length - 1) {
        size /= 1024;
        unit += 1;
    }
    return `${short.format(size)} ${SIZES[unit]}`;
}

/**
 * How long something has lasted, in its two largest units.
 * @param {number} seconds
 * @returns {string}
 */
export function formatDuration(seconds) {
    const s = Math.max(0, Math.floor(seconds));
    const days = Math.floor(s / 86_400);
    const hours = Math.floor(s / 3600) % 24;
    const minutes = Math.floor(s / 60) % 60;
    if (days) return interpolate(gettext("%s d %s h"), [days, hours]);
    if (hours) return interpolate(gettext("%s h %s min"), [hours, minutes]);
    if (minutes) return interpolate(gettext("%s min"), [minutes]);
    return interpolate(gettext("%s s"), [s]);
}

/**
 * @param {number | string} when  Unix time in ms, or an ISO date
 * @returns {string}
 */
export function formatMoment(when) {
    return moment.format(new Date(when));
}

/**
 * @param {number} part
 * @param {number} all
 * @returns {string} such as 97 %
 */
export function formatShare(part, all) {
    if (all <= 0) return NOTHING;
    const share = (100 * part) / all;
    // 100 % is said only of all, 0 % only of nothing
    const shown = part < all ? Math.min(99.9, share) : share;
    return `${short.format(part > 0 ? Math.max(0.1, shown) : 0)} %`;
}
