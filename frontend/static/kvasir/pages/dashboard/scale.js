// From numbers to the heatmap's colours: replicas against their target in five steps, traffic on a continuous scale.
// Pure but for reading the theme's tokens; `dashboard_heatmap` draws what comes out.

export const STEPS = /** @type {const} */ (["none", "below", "target", "above", "plenty"]);

/** @typedef {typeof STEPS[number]} Step */
/** @typedef {[number, number, number]} Rgb */
/** @typedef {{steps: Rgb[], absent: Rgb}} Palette  `absent`: layers without experts. */

const TRAFFIC_STOPS = [0, 2, 3, 4]; // steps of the palette that the traffic's scale goes through: lightness only grows
const TRAFFIC_LEVELS = 64;
const TRAFFIC_ORDERS = 2; // of magnitude, from the palest to the fullest
const TOP_SHARE = 0.99; // of the experts are not above the scale
const LEAST_TOP = 1; // rows/s: below, even the busiest expert is nearly idle, and looks so

/**
 * Which step a cell is on; null when nothing is wanted there.
 * @param {number} replicas
 * @param {number} target
 * @returns {number | null}
 */
export function stepOf(replicas, target) {
    if (target === 0) return null;
    if (replicas === 0) return 0;
    if (replicas < target) return 1;
    if (replicas === target) return 2;
    return replicas < 2 * target ? 3 : 4;
}

/**
 * Where a rate is between nothing and the scale's top, 0 to 1; logarithmic, so that quiet experts can be told apart.
 * @param {number} rate
 * @param {number} top
 * @returns {number}
 */
export function trafficLevel(rate, top) {
    if (rate <= 0 || top <= 0) return 0;
    return Math.max(0.02, Math.min(1, 1 + Math.log10(rate / top) / TRAFFIC_ORDERS));
}

/**
 * @param {Palette} palette
 * @param {number} level  0 to 1
 * @returns {Rgb}
 */
export function trafficColour(palette, level) {
    const place = level * (TRAFFIC_STOPS.length - 1);
    const first = Math.min(Math.floor(place), TRAFFIC_STOPS.length - 2);
    const from = palette.steps[TRAFFIC_STOPS[first]];
    const to = palette.steps[TRAFFIC_STOPS[first + 1]];
    const part = place - first;
    return /** @type {Rgb} */ (from.map((value, i) => Math.round(value + (to[i] - value) * part)));
}

/**
 * Colours of all cells by replicas against targets, as ImageData's pixels.
 * @param {readonly number[]} replicas  flat
 * @param {readonly number[]} targets  flat
 * @param {Palette} palette
 * @returns {Uint32Array<ArrayBuffer>}
 */
export function replicaPixels(replicas, targets, palette) {
    const steps = palette.steps.map(pixel);
    const absent = pixel(palette.absent);
    const pixels = new Uint32Array(replicas.length);
    for (let i = 0; i < pixels.length; i++) {
        const step = stepOf(replicas[i], targets[i]);
        pixels[i] = step === null ? absent : steps[step];
    }
    return pixels;
}

/**
 * Colours of all cells by traffic.
 * @param {readonly number[]} traffic  rows/s, flat
 * @param {readonly number[]} targets  flat; 0 where there are no experts
 * @param {Palette} palette
 * @returns {Uint32Array<ArrayBuffer>}
 */
export function trafficPixels(traffic, targets, palette) {
    const top = trafficTop(traffic);
    const levels = Array.from({ length: TRAFFIC_LEVELS + 1 }, (_, i) =>
        pixel(trafficColour(palette, i / TRAFFIC_LEVELS)),
    );
    const absent = pixel(palette.absent);
    const pixels = new Uint32Array(traffic.length);
    for (let i = 0; i < pixels.length; i++) {
        pixels[i] = targets[i] === 0 ? absent : levels[Math.round(trafficLevel(traffic[i], top) * TRAFFIC_LEVELS)];
    }
    return pixels;
}

/**
 * The rate at the upper end of the traffic's scale: few experts are above it, so that one outlier does not make all
 * others look idle.
 * @param {readonly number[]} traffic  rows/s
 * @returns {number}
 */
export function trafficTop(traffic) {
    const ordered = Float64Array.from(traffic).sort();
    const place = Math.ceil(TOP_SHARE * ordered.length) - 1;
    return Math.max(LEAST_TOP, ordered[place] ?? 0);
}

/**
 * The theme's colours now.
 * @returns {Palette}
 */
export function themePalette() {
    const style = getComputedStyle(document.documentElement);
    /** @param {string} name */
    const token = (name) => hexColour(style.getPropertyValue(name));
    return { steps: STEPS.map((_, step) => token(`--heat-${step}`)), absent: token("--page") };
}

/**
 * @param {string} text  `#rrggbb`
 * @returns {Rgb}
 */
export function hexColour(text) {
    const found = /^\s*#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})\s*$/i.exec(text);
    if (!found) throw new Error(`the theme's colour ${JSON.stringify(text)} is not of the form #rrggbb`);
    return [parseInt(found[1], 16), parseInt(found[2], 16), parseInt(found[3], 16)];
}

/**
 * A colour as the four bytes of a pixel, red first in memory.
 * @param {Rgb} colour
 * @returns {number}
 */
export function pixel([red, green, blue]) {
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
