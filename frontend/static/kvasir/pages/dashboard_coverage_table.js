// Coverage as a table, one row a layer, for screen readers and for whoever wants numbers. Made only while it is open.

import { html, useState } from "../ui/html.js";
import { formatCount, formatRate, formatShare } from "./dashboard_format.js";

/** @typedef {import("./dashboard_types.js").Snapshot} Snapshot */

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

/** @param {{snapshot: Snapshot}} props */
export function CoverageTable({ snapshot }) {
  const [isOpen, setIsOpen] = useState(false);
  return html`<details open=${isOpen} onToggle=${(/** @type {Event} */ event) => setIsOpen(/** @type {HTMLDetailsElement} */ (event.currentTarget).open)}>
    <summary>${gettext("Show as a table")}</summary>
    ${isOpen && html`<${Layers} snapshot=${snapshot} />`}
  </details>`;
}

/** @param {{snapshot: Snapshot}} props */
function Layers({ snapshot }) {
  const { n_expert: nExpert, moe_layers: layers } = snapshot.model;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${gettext("Coverage by layer")}>
    <table>
      <caption>${interpolate(gettext("Coverage of each layer's %s experts"), [formatCount(nExpert)])}</caption>
      <thead><tr>
        <th scope="col">${gettext("Layer")}</th>
        <th scope="col" class="number">${gettext("Covered")}</th>
        <th scope="col" class="number">${gettext("Replicas")}</th>
        <th scope="col" class="number">${gettext("Lacking")}</th>
        <th scope="col" class="number">${gettext("Rows/s")}</th>
        <th scope="col">${gettext("Nobody holds")}</th>
      </tr></thead>
      <tbody>${layers.map((layer) => html`<${LayerRow} facts=${layerFacts(snapshot, layer)} nExpert=${nExpert} />`)}</tbody>
    </table>
  </div>`;
}

/** @param {{facts: LayerFacts, nExpert: number}} props */
function LayerRow({ facts, nExpert }) {
  const replicas = facts.fewest === facts.most ? `${facts.fewest}` : `${facts.fewest}–${facts.most}`;
  return html`<tr>
    <th scope="row">${facts.layer}</th>
    <td class="number">${formatShare(facts.nCovered, nExpert)}</td>
    <td class="number">${replicas}</td>
    <td class="number">${formatCount(facts.nLacking)}</td>
    <td class="number">${formatRate(facts.rowsPerS)}</td>
    <td>${facts.uncovered || gettext("none")}</td>
  </tr>`;
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
