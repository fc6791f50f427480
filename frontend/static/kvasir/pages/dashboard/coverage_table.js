// Coverage as a table, one row a layer, for screen readers and for whoever wants numbers. Made only while it is open.

import { html, useState } from "../../ui/html.js";
import { layerFacts } from "./cells.js";
import { formatCount, formatRate, formatShare } from "./format.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */

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

/** @param {{facts: import("./cells.js").LayerFacts, nExpert: number}} props */
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
