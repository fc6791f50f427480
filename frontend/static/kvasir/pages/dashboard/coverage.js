import { html, useEffect, useRef, useState } from "../../ui/html.js";
import { cellAfter, cellWords, layerFacts } from "./cells.js";
import { formatCount, formatRate, formatShare } from "./format.js";
import { Heatmap } from "./heatmap.js";
import { replicaPixels, themePalette, trafficPixels, trafficTop } from "./scale.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").Cell} Cell */

// The coverage card: the heatmap with its two views, what is under pointer or cursor, the legend and the table view.
// `dashboard` gives it snapshots. It asks nothing of the server.

/** @typedef {"replicas" | "traffic"} HeatView */

/** @param {{snapshot: Snapshot}} props */
export function CoverageCard({ snapshot }) {
    const [view, setView] = useState(/** @type {HeatView} */ ("replicas"));
    const [cell, setCell] = useState(/** @type {Cell | null} */ (null));
    return html`<section class="card" aria-labelledby="coverage-title">
    <div class="card-head">
      <h2 id="coverage-title">${gettext("Coverage")}</h2>
      <${ViewChoice} view=${view} onView=${setView} />
    </div>
    <${HeatmapView} snapshot=${snapshot} view=${view} cell=${cell} onCell=${setCell} />
    <p class="heat-cell" role="status">${cell ? cellWords(snapshot, cell) : gettext("Point at a cell, or move with the arrow keys.")}</p>
    ${view === "replicas" ? html`<${ReplicaLegend} />` : html`<${TrafficLegend} traffic=${snapshot.traffic} />`}
    <${CoverageTable} snapshot=${snapshot} />
  </section>`;
}

/** @param {{view: HeatView, onView: (view: HeatView) => void}} props */
function ViewChoice({ view, onView }) {
    /** @param {HeatView} value @param {string} text */
    const choice = (value, text) => html`<label class=${view === value ? "chosen" : ""}>
    <input type="radio" name="heat-view" value=${value} checked=${view === value} onChange=${() => onView(value)} />${text}
  </label>`;
    return html`<fieldset class="segments">
    <legend class="unseen">${gettext("What the map shows")}</legend>
    ${choice("replicas", gettext("Replicas"))}${choice("traffic", gettext("Traffic"))}
  </fieldset>`;
}

/**
 * The canvas with its axes.
 * @param {{snapshot: Snapshot, view: HeatView, cell: Cell | null, onCell: (cell: Cell | null) => void}} props
 */
function HeatmapView({ snapshot, view, cell, onCell }) {
    const { n_layer: nLayer, n_expert: nExpert } = snapshot.model;
    const canvas = useHeatmap(snapshot, view, cell, onCell);
    const label = interpolate(
        gettext("%s layers of %s experts. Move with the arrow keys; Home and End go to the first and the last expert."),
        [nLayer, nExpert],
    );
    return html`<div class="heat">
    <div class="heat-layers" aria-hidden="true"><span>0</span><span class="axis">${gettext("layer")}</span><span>${nLayer - 1}</span></div>
    <canvas ref=${canvas} class=${heightClass(nLayer)} tabindex="0" role="application" aria-label=${label}></canvas>
    <div class="heat-experts" aria-hidden="true"><span>0</span><span class="axis">${gettext("expert")}</span><span>${nExpert - 1}</span></div>
  </div>`;
}

/**
 * Keeps one heatmap on the canvas and follows snapshot, view, cell, theme and size.
 * @param {Snapshot} snapshot
 * @param {HeatView} view
 * @param {Cell | null} cell
 * @param {(cell: Cell | null) => void} onCell
 */
function useHeatmap(snapshot, view, cell, onCell) {
    const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
    const heatmap = useRef(/** @type {Heatmap | null} */ (null));
    const latest = useRef({ snapshot, view, cell });
    latest.current = { snapshot, view, cell };
    useEffect(() => {
        if (!canvas.current) return undefined;
        const map = new Heatmap(canvas.current);
        heatmap.current = map;
        const repaint = () => paint(map, latest.current.snapshot, latest.current.view);
        const observer = new ResizeObserver(() => map.draw());
        observer.observe(canvas.current);
        document.addEventListener("kvasir-theme", repaint);
        const forget = listen(canvas.current, map, () => latest.current.cell, onCell);
        return () => {
            observer.disconnect();
            document.removeEventListener("kvasir-theme", repaint);
            forget();
        };
    }, []);
    useEffect(() => {
        if (heatmap.current) paint(heatmap.current, snapshot, view);
    }, [snapshot, view]);
    useEffect(() => heatmap.current?.point(cell), [cell]);
    return canvas;
}

/**
 * @param {Heatmap} map
 * @param {Snapshot} snapshot
 * @param {HeatView} view
 */
function paint(map, { model, coverage, traffic }, view) {
    const palette = themePalette();
    const style = getComputedStyle(document.documentElement);
    map.lineColour = style.getPropertyValue("--surface");
    map.cursorColour = style.getPropertyValue("--focus");
    const pixels =
        view === "replicas"
            ? replicaPixels(coverage.replicas, coverage.targets, palette)
            : trafficPixels(traffic, coverage.targets, palette);
    map.show(model.n_layer, model.n_expert, pixels);
}

/**
 * Pointer and keys move the cell. Returns what takes the listeners away.
 * @param {HTMLCanvasElement} canvas
 * @param {Heatmap} map
 * @param {() => Cell | null} cellNow
 * @param {(cell: Cell | null) => void} onCell
 */
function listen(canvas, map, cellNow, onCell) {
    const controller = new AbortController();
    const { signal } = controller;
    const follow = (/** @type {PointerEvent} */ event) => onCell(map.cellAt(event.clientX, event.clientY));
    canvas.addEventListener("pointermove", follow, { signal });
    canvas.addEventListener("pointerdown", follow, { signal });
    canvas.addEventListener(
        "pointerleave",
        (event) => {
            if (event.pointerType === "mouse" && document.activeElement !== canvas) onCell(null);
        },
        { signal },
    );
    canvas.addEventListener(
        "keydown",
        (event) => {
            const next = cellAfter(event.key, cellNow(), map.nLayer, map.nExpert);
            if (next === undefined) return;
            event.preventDefault();
            onCell(next);
        },
        { signal },
    );
    return () => controller.abort();
}

function ReplicaLegend() {
    const texts = [
        gettext("nobody holds it"),
        gettext("below its target"),
        gettext("at its target"),
        gettext("above"),
        gettext("twice its target, or more"),
    ];
    return html`<ul class="legend">${texts.map((text, step) => html`<li><span class="swatch heat-${step}"></span>${text}</li>`)}</ul>`;
}

/** @param {{traffic: number[]}} props */
function TrafficLegend({ traffic }) {
    const top = interpolate(gettext("%s rows/s or more"), [formatRate(trafficTop(traffic))]);
    return html`<div class="scale">
    <span>0</span><span class="scale-bar" aria-hidden="true"></span><span>${top}</span>
    <span class="muted">${gettext("(logarithmic)")}</span>
  </div>`;
}

/** @param {number} nLayer */
function heightClass(nLayer) {
    if (nLayer <= 12) return "few";
    return nLayer <= 64 ? "some" : "many";
}

// Coverage as a table, one row a layer, for screen readers and for whoever wants numbers. Made only while it is open.

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
