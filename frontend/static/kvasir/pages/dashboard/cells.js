// Cells and layers of a snapshot in words and numbers, and where keys lead on the map. Pure; the coverage card and its
// table use it.

import { formatBytes, formatRate } from "./format.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").Cell} Cell */

/**
 * @typedef {object} LayerFacts
 * @property {number} layer
 * @property {number} nCovered
 * @property {number} fewest
 * @property {number} most
 * @property {number} nLacking
 * @property {number} rowsPerS
 * @property {string} uncovered  runs of experts that nobody holds
 */

const MOST_RUNS = 6;

/**
 * Where a key leads from a cell; undefined for keys that lead nowhere, null away from the map.
 * @param {string} key
 * @param {Cell | null} cell
 * @param {number} nLayer
 * @param {number} nExpert
 * @returns {Cell | null | undefined}
 */
export function cellAfter(key, cell, nLayer, nExpert) {
    const { layer, expert } = cell ?? { layer: 0, expert: 0 };
    /** @type {Record<string, Cell | null>} */
    const ways = {
        ArrowLeft: { layer, expert: Math.max(0, expert - 1) },
        ArrowRight: { layer, expert: Math.min(nExpert - 1, expert + 1) },
        ArrowUp: { layer: Math.max(0, layer - 1), expert },
        ArrowDown: { layer: Math.min(nLayer - 1, layer + 1), expert },
        Home: { layer, expert: 0 },
        End: { layer, expert: nExpert - 1 },
        PageUp: { layer: 0, expert },
        PageDown: { layer: nLayer - 1, expert },
        Escape: null,
    };
    if (!(key in ways)) return undefined;
    return cell === null && key !== "Escape" ? { layer: 0, expert: 0 } : ways[key];
}

/**
 * A cell in words.
 * @param {Snapshot} snapshot
 * @param {Cell} cell
 * @returns {string}
 */
export function cellWords({ model, coverage, traffic }, { layer, expert }) {
    const i = layer * model.n_expert + expert;
    if (model.expert_bytes[layer] === 0) return interpolate(gettext("Layer %s has no experts"), [layer]);
    const parts = [
        interpolate(gettext("Layer %(layer)s, expert %(expert)s"), { layer, expert }, true),
        interpolate(ngettext("%s of %s replica", "%s of %s replicas", coverage.targets[i]), [
            coverage.replicas[i],
            coverage.targets[i],
        ]),
    ];
    if (coverage.pending[i]) parts.push(interpolate(gettext("%s on the way"), [coverage.pending[i]]));
    parts.push(interpolate(gettext("%s rows/s"), [formatRate(traffic[i])]), formatBytes(model.expert_bytes[layer]));
    return parts.join(" · ");
}

/**
 * One layer in numbers.
 * @param {Snapshot} snapshot
 * @param {number} layer
 * @returns {LayerFacts}
 */
export function layerFacts({ model, coverage, traffic }, layer) {
    const first = layer * model.n_expert;
    const replicas = coverage.replicas.slice(first, first + model.n_expert);
    let nLacking = 0;
    let rowsPerS = 0;
    for (let i = 0; i < replicas.length; i++) {
        nLacking += Math.max(0, coverage.targets[first + i] - replicas[i]);
        rowsPerS += traffic[first + i];
    }
    return {
        layer,
        nCovered: replicas.filter((count) => count > 0).length,
        fewest: Math.min(...replicas),
        most: Math.max(...replicas),
        nLacking,
        rowsPerS,
        uncovered: runsOf(replicas.map((count) => count === 0)),
    };
}

/**
 * Runs of what is true as text, the first MOST_RUNS of them: `0–3, 7`.
 * @param {readonly boolean[]} flags
 * @returns {string}
 */
export function runsOf(flags) {
    const runs = [];
    for (let i = 0; i < flags.length; i++) {
        if (!flags[i]) continue;
        const first = i;
        while (flags[i + 1]) i++;
        runs.push(first === i ? `${first}` : `${first}–${i}`);
    }
    return runs.slice(0, MOST_RUNS).join(", ") + (runs.length > MOST_RUNS ? " …" : "");
}
