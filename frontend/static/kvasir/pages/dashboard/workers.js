// The workers' card: one row a worker. `dashboard` gives it snapshots; the server has sorted and bounded them.

import { html } from "../../ui/html.js";
import { formatBytes, formatCount, formatDuration, formatMs, formatRate, NOTHING } from "./format.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").Worker} Worker */

const MOST_RANGES = 3;

/** @param {{snapshot: Snapshot}} props */
export function WorkersCard({ snapshot }) {
    const hidden = snapshot.n_workers - snapshot.workers.length;
    return html`<section class="card" aria-labelledby="workers-title">
    <h2 id="workers-title">${gettext("Workers")}</h2>
    ${snapshot.workers.length ? html`<${WorkersTable} workers=${snapshot.workers} atMs=${snapshot.at} />` : html`<${NoWorkers} />`}
    ${hidden > 0 && html`<p class="muted">${interpolate(ngettext("and %s more", "and %s more", hidden), [formatCount(hidden)])}</p>`}
  </section>`;
}

function NoWorkers() {
    return html`<p>${gettext("Nobody contributes right now: the backbone computes every expert itself.")} <a href="/contribute">${gettext("Be the first")}</a></p>`;
}

/**
 * The table's columns, and the classes of their cells. Phones show a worker's cells below each other: roles are named
 * because a cell that is no table cell any more loses its own.
 * @returns {[string, string][]}
 */
function columns() {
    return [
        [gettext("Worker"), ""],
        [gettext("Class"), ""],
        [gettext("Region"), ""],
        [gettext("Holds"), ""],
        [gettext("Round trip"), "number"],
        [gettext("Rows/s"), "number"],
        [gettext("Trust"), ""],
        [gettext("Up for"), "number"],
    ];
}

/** @param {{workers: Worker[], atMs: number}} props */
function WorkersTable({ workers, atMs }) {
    return html`<div class="scroll" tabindex="0" role="region" aria-label=${gettext("Workers")}>
    <table class="workers stacking" role="table">
      <thead role="rowgroup"><tr role="row">${columns().map(
          ([text, kind]) => html`<th scope="col" role="columnheader" class=${kind}>${text}</th>`,
      )}</tr></thead>
      <tbody role="rowgroup">${workers.map((worker) => html`<${WorkerRow} key=${worker.id} worker=${worker} atMs=${atMs} />`)}</tbody>
    </table>
  </div>`;
}

/** @param {{worker: Worker, atMs: number}} props */
function WorkerRow({ worker, atMs }) {
    const upFor = worker.since_ms === null ? NOTHING : formatDuration((atMs - worker.since_ms) / 1000);
    const cells = [
        html`${kindWords(worker.kind)}<small class="under">${[worker.backend, worker.os].filter(Boolean).join(" · ")}</small>`,
        worker.region || NOTHING,
        html`${holdsWords(worker)}<small class="under">${rangesWords(worker.ranges)}</small>`,
        formatMs(worker.round_trip_ms),
        formatRate(worker.rows_per_s),
        html`<${TrustBadge} worker=${worker} />`,
        upFor,
    ];
    const heads = columns();
    return html`<tr role="row">
    <th scope="row" role="rowheader"><code>${worker.id}</code></th>
    ${cells.map((cell, i) => html`<td role="cell" class=${heads[i + 1][1]} data-label=${heads[i + 1][0]}><div>${cell}</div></td>`)}
  </tr>`;
}

/** @param {{worker: Worker}} props */
export function TrustBadge({ worker }) {
    const verified = interpolate(ngettext("%s row verified", "%s rows verified", worker.verified), [
        formatCount(worker.verified),
    ]);
    if (worker.trust === "quarantined") return html`<span class="badge bad">${gettext("in quarantine")}</span>`;
    const isProven = worker.trust === "proven";
    return html`<span class="badge ${isProven ? "good" : ""}">${isProven ? gettext("proven") : gettext("not proven yet")}</span>
    <small class="under">${verified}</small>`;
}

/**
 * What kind of device it says that it is.
 * @param {string} kind
 * @returns {string}
 */
export function kindWords(kind) {
    /** @type {Record<string, string>} */
    const known = { cpu: "CPU", gpu: "GPU", browser: gettext("browser tab") };
    return known[kind] ?? (kind || NOTHING);
}

/**
 * How much it holds.
 * @param {Worker} worker
 * @returns {string}
 */
export function holdsWords({ n_experts: nExperts, bytes }) {
    if (nExperts === 0) return NOTHING;
    return `${interpolate(ngettext("%s expert", "%s experts", nExperts), [formatCount(nExperts)])}, ${formatBytes(bytes)}`;
}

/**
 * The first ranges, as layer:first–last.
 * @param {Worker["ranges"]} ranges
 * @returns {string}
 */
export function rangesWords(ranges) {
    const shown = ranges.slice(0, MOST_RANGES).map(([layer, start, stop]) => `${layer}:${start}–${stop - 1}`);
    return shown.join("  ") + (ranges.length > MOST_RANGES ? " …" : "");
}
