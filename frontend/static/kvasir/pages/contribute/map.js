/**
 * The small map: layers × experts, and in it what this tab holds. `contribute/page.js` shows it; a table says the same for
 * those who do not see the canvas.
 */

import { formatBytes } from "../../ui/format.js";
import { html, useEffect, useRef } from "../../ui/html.js";

/** @typedef {import("../../worker/tab/messages.js").ContributionState} ContributionState */
/** @typedef {import("../../worker/tab/messages.js").HeldRange} HeldRange */

const COLOURS = { promised: "--heat-1", fetched: "--heat-2", served: "--by-tab" };

/**
 * One pixel an expert; CSS makes it large.
 * @param {HTMLCanvasElement} canvas
 * @param {import("../../worker/tab/messages.js").ModelFacts} model
 * @param {HeldRange[]} ranges
 */
export function drawMap(canvas, model, ranges) {
    const [width, height] = [model.nExpert, model.nLayer];
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const context = canvas.getContext("2d");
    if (!context) return;
    const style = getComputedStyle(canvas);
    context.fillStyle = style.getPropertyValue("--heat-0");
    context.fillRect(0, 0, width, height);
    for (const { layer, start, stop, step } of ranges) {
        context.fillStyle = style.getPropertyValue(COLOURS[step]);
        context.fillRect(start, layer, stop - start, 1);
    }
}

/** @param {HeldRange["step"]} step */
function stepText(step) {
    return { promised: gettext("promised"), fetched: gettext("downloaded"), served: gettext("serving") }[step];
}

/** @param {{ranges: HeldRange[]}} props */
function RangeTable({ ranges }) {
    return html`<details>
        <summary>${interpolate(ngettext("%s range as a table", "%s ranges as a table", ranges.length), [ranges.length])}</summary>
        <div class="scroll" tabindex="0" role="region" aria-label=${gettext("Ranges")}><table>
            <thead><tr><th>${gettext("Layer")}</th><th>${gettext("Experts")}</th><th class="number">${gettext("Size")}</th><th>${gettext("State")}</th></tr></thead>
            <tbody>${ranges.map(
                (
                    range,
                ) => html`<tr key=${`${range.layer}:${range.start}`}><td>${range.layer}</td><td>${range.start}–${range.stop - 1}</td>
                    <td class="number">${formatBytes(range.nBytes)}</td><td>${stepText(range.step)}</td></tr>`,
            )}</tbody>
        </table></div>
    </details>`;
}

/** Map, legend and table. @param {{state: ContributionState}} props */
export function HeldMap({ state }) {
    const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
    const { model, ranges } = state;
    useEffect(() => {
        const draw = () => canvas.current && model && drawMap(canvas.current, model, ranges);
        draw();
        document.addEventListener("kvasir-theme", draw);
        return () => document.removeEventListener("kvasir-theme", draw);
    });
    const nExperts = ranges.reduce((sum, range) => sum + range.stop - range.start, 0);
    const nBytes = ranges.reduce((sum, range) => sum + range.nBytes, 0);
    const summary = interpolate(ngettext("%s expert, %s", "%s experts, %s", nExperts), [nExperts, formatBytes(nBytes)]);
    return html`<section class="card" aria-labelledby="map-title">
        <h2 id="map-title">${gettext("What this tab holds")}</h2>
        ${
            model
                ? html`<p class="muted">${model.name}: ${interpolate(gettext("%s layers of %s experts"), [model.nLayer, model.nExpert])}</p>
                <canvas ref=${canvas} class="held-map" role="img" aria-label=${summary}></canvas>
                <ul class="legend"><li><span class="swatch by-tab"></span>${gettext("serving")}</li>
                    <li><span class="swatch heat-2"></span>${gettext("downloaded")}</li><li><span class="swatch heat-1"></span>${gettext("promised")}</li></ul>
                <p id="held">${summary}</p>`
                : html`<p class="muted">${gettext("Nothing yet.")}</p>`
        }
        ${ranges.length > 0 && html`<${RangeTable} ranges=${ranges} />`}
    </section>`;
}
