/**
 * Tables of the rewards page: days of work, ledger entries, nodes, top earners. `rewards.js` gives them their rows.
 */

import { formatCompact, formatCredits, formatMoment, formatNumber } from "../../ui/format.js";
import { html } from "../../ui/html.js";

/** @typedef {import("./client.js").WorkItem} WorkItem */
/** @typedef {import("./client.js").Entry} Entry */
/** @typedef {import("./client.js").Earner} Earner */
/** @typedef {import("./client.js").NodeStanding} NodeStanding */

/**
 * A table that scrolls sideways where it must, and says so to keyboards.
 * @param {{label: string, heads: {text: string, isNumber?: boolean}[], children?: unknown}} props
 */
function Table({ label, heads, children }) {
    return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
        <thead><tr>${heads.map(({ text, isNumber }) => html`<th scope="col" class=${isNumber ? "number" : ""}>${text}</th>`)}</tr></thead>
        <tbody>${children}</tbody>
    </table></div>`;
}

/** @param {{items: WorkItem[]}} props */
export function WorkTable({ items }) {
    const heads = [
        { text: gettext("Day") },
        { text: gettext("Node") },
        { text: gettext("Layer") },
        { text: gettext("Experts") },
        { text: gettext("Rows"), isNumber: true },
        { text: gettext("Credits"), isNumber: true },
        { text: gettext("State") },
    ];
    return html`<${Table} label=${gettext("Days of work")} heads=${heads}>
        ${items.map(
            (item) => html`<tr key=${`${item.day}${item.node_id}${item.layer}:${item.experts[0]}${item.reason}`}>
            <td class="nowrap">${item.day}</td><td class="mono">${item.node_id.slice(0, 8)}</td><td>${item.layer}</td>
            <td class="nowrap">${item.experts[0]}–${item.experts[1] - 1}</td>
            <td class="number">${formatNumber(item.row_experts)}</td><td class="number">${formatCredits(item.microcredits, 3)}</td>
            <td class="state">${
                item.paid
                    ? html`<span class="badge good">${gettext("paid")}</span>`
                    : html`<span class="badge warn">${gettext("not paid")}</span> <small>${item.reason}</small>`
            }</td>
        </tr>`,
        )}
    <//>`;
}

/** @param {string} type */
function entryType(type) {
    /** @type {Record<string, string>} */
    const texts = { earned: gettext("earned"), withheld: gettext("withheld"), reversed: gettext("corrected") };
    return texts[type] ?? type;
}

/** @param {{items: Entry[]}} props */
export function EntryTable({ items }) {
    const heads = [
        { text: gettext("When") },
        { text: gettext("Kind") },
        { text: gettext("Credits"), isNumber: true },
        { text: gettext("Event") },
    ];
    return html`<${Table} label=${gettext("Ledger entries")} heads=${heads}>
        ${items.map(
            (item) => html`<tr key=${item.event}>
            <td class="nowrap">${formatMoment(Date.parse(item.at))}</td><td>${entryType(item.type)}</td>
            <td class="number">${item.microcredits > 0 ? "+" : ""}${formatCredits(item.microcredits, 3)}</td>
            <td><span class="mono">${item.event}</span>${item.note && html` <small>${item.note}</small>`}</td>
        </tr>`,
        )}
    <//>`;
}

/** @param {{nodes: NodeStanding[]}} props */
export function NodeTable({ nodes }) {
    const heads = [
        { text: gettext("Node") },
        { text: gettext("Verified"), isNumber: true },
        { text: gettext("Wrong answers"), isNumber: true },
        { text: gettext("State") },
    ];
    return html`<${Table} label=${gettext("Nodes")} heads=${heads}>
        ${nodes.map(
            (node) => html`<tr key=${node.node_id}>
            <td class="mono">${node.node_id}</td><td class="number">${formatCompact(node.verified_row_experts)}</td>
            <td class="number">${node.failures}</td>
            <td>${
                node.quarantined
                    ? html`<span class="badge bad">${gettext("in quarantine")}</span>`
                    : html`<span class="badge good">${gettext("in good standing")}</span>`
            }
                ${node.evidence.length > 0 && html`<details><summary>${gettext("Evidence")}</summary><pre>${JSON.stringify(node.evidence, null, 2)}</pre></details>`}</td>
        </tr>`,
        )}
    <//>`;
}

/** @param {{items: Earner[], mine: string}} props  `mine`: the id that is marked */
export function EarnerTable({ items, mine }) {
    const heads = [
        { text: "#" },
        { text: gettext("Account") },
        { text: gettext("Credits"), isNumber: true },
        { text: gettext("Rows"), isNumber: true },
    ];
    return html`<${Table} label=${gettext("Top earners")} heads=${heads}>
        ${items.map(
            (item) => html`<tr key=${item.id} class=${item.id === mine ? "mine" : ""}>
            <td>${item.rank}</td>
            <td><span class="mono">${item.id.slice(0, 8)}</span>${item.id === mine && html` <span class="badge good">${gettext("you")}</span>`}
                ${item.kind === "node" && html` <small>${gettext("node")}</small>`}</td>
            <td class="number">${formatCredits(item.microcredits, 3)}</td><td class="number">${formatCompact(item.row_experts)}</td>
        </tr>`,
        )}
    <//>`;
}
