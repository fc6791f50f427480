/**
 * Where an answer was computed: shares by source, a column for each of the last tokens, a strip of layers for each
 * source. `playground/page.js` draws it below an answer. One token can be opened; then everything is about that one.
 */

import { formatNumber, formatShare } from "../../ui/format.js";
import { html } from "../../ui/html.js";
import { KINDS, largestSources, sharesByKind, sourcesOf } from "./sources.js";
import { kindName, sourceName } from "./texts.js";

/** @typedef {import("./session.js").Turn} Turn */
/** @typedef {import("./sources.js").Trace} Trace */
/** @typedef {import("./sources.js").Source} Source */
/** @typedef {Record<import("./sources.js").SourceKind, number>} Shares */
/** @typedef {(token: number | undefined) => void} Open */

const MOST_SOURCES = 12;

/** @param {{turn: Turn, isOpen: boolean, opened: number | undefined, onOpen: Open}} props */
export function Computed({ turn, isOpen, opened, onOpen }) {
    const { trace } = turn;
    return html`<details class="computed card" open=${isOpen} data-trace=${turn.traceState}>
        <summary><h3>${gettext("Where it was computed")}</h3></summary>
        ${turn.traceState === "loading" && html`<p class="muted">${gettext("Asking the backbone…")}</p>`}
        ${turn.traceState === "missing" && html`<p class="muted">${gettext("Nobody knows any more: traces are kept for an hour.")}</p>`}
        ${turn.usage && html`<${Whole} usage=${turn.usage} />`}
        ${trace && html`<${Traced} turn=${turn} trace=${trace} opened=${opened} onOpen=${onOpen} />`}
    </details>`;
}

/** The whole answer, prompt included. @param {{usage: import("./api.js").SwarmUsage}} props */
function Whole({ usage }) {
    const shares = { tab: 0, ...usage.shares };
    const told = interpolate(gettext("%s rows through experts, prompt included."), [formatNumber(usage.nRowExperts)]);
    return html`<div class="whole">
        <${Bar} shares=${shares} label=${gettext("Share of each source in the whole answer")} />
        <p class="muted">${told} ${
            usage.nUnconfirmed > 0 &&
            interpolate(
                ngettext(
                    "The answers of %s worker were used before anybody had checked them; some are checked later.",
                    "The answers of %s workers were used before anybody had checked them; some are checked later.",
                    usage.nUnconfirmed,
                ),
                [formatNumber(usage.nUnconfirmed)],
            )
        }</p>
        ${usage.isFlagged && html`<p class="notice bad">${gettext("One of these workers is proven to lie: the text may be wrong.")}</p>`}
    </div>`;
}

/** Shares side by side, and what the colours mean. @param {{shares: Shares, label: string}} props */
function Bar({ shares, label }) {
    const there = KINDS.filter((kind) => shares[kind] > 0);
    const starts = there.map((_, number) => there.slice(0, number).reduce((sum, kind) => sum + shares[kind], 0));
    return html`<svg class="share-bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label=${label}>
            ${there.map((kind, number) => html`<rect class=${`by-${kind}`} x=${1000 * starts[number]} width=${1000 * shares[kind]} height="10" />`)}
        </svg>
        <ul class="legend">${there.map(
            (kind) => html`<li data-kind=${kind} data-share=${shares[kind]}>
            <span class=${`swatch by-${kind}`}></span>${kindName(kind)} <strong>${formatShare(shares[kind])}</strong></li>`,
        )}</ul>`;
}

/** @param {{turn: Turn, trace: Trace, opened: number | undefined, onOpen: Open}} props */
function Traced({ turn, trace, opened, onOpen }) {
    const n = trace.counts.length;
    const tab = sharesByKind(trace).tab;
    const title =
        opened === undefined
            ? interpolate(ngettext("The last token", "The last %s tokens", n), [formatNumber(n)])
            : tokenTitle(turn, trace, opened);
    return html`
        ${tab > 0 && html`<p class="notice good this-tab">${interpolate(gettext("This browser computed %s of the last tokens."), [formatShare(tab)])}</p>`}
        <div class="traced-head"><h4>${title}</h4>
            ${opened !== undefined && html`<button type="button" class="quiet" onClick=${() => onOpen(undefined)}>${gettext("All tokens")}</button>`}</div>
        <${Columns} turn=${turn} trace=${trace} opened=${opened} onOpen=${onOpen} />
        <${Layers} trace=${trace} opened=${opened} />`;
}

/** @param {Turn} turn @param {Trace} trace @param {number} opened */
function tokenTitle(turn, trace, opened) {
    const token = turn.tokens[trace.firstToken + opened];
    const number = formatNumber(trace.firstToken + opened + 1);
    const text = token?.text.trim() ? token.text.trim() : gettext("no text");
    const chance = token?.logprob == null ? "–" : formatShare(Math.exp(token.logprob));
    return interpolate(gettext("Token %s, “%s”, chosen with probability %s"), [number, text, chance]);
}

/** A column for each token, split by who computed it; the slider opens one. @param {{turn: Turn, trace: Trace, opened: number | undefined, onOpen: Open}} props */
function Columns({ turn, trace, opened, onOpen }) {
    const n = trace.counts.length;
    const onClick = (/** @type {any} */ event) => {
        const box = event.currentTarget.getBoundingClientRect();
        onOpen(Math.min(n - 1, Math.max(0, Math.floor((n * (event.clientX - box.left)) / box.width))));
    };
    return html`<div class="columns">
        <svg viewBox=${`0 0 ${n} 1`} preserveAspectRatio="none" aria-hidden="true" onClick=${onClick}>
            ${trace.counts.map((_, token) => html`<${Column} key=${token} trace=${trace} token=${token} isOpened=${token === opened} isDim=${opened !== undefined && token !== opened} />`)}
        </svg>
        <label class="unseen" for=${`token-${turn.id}`}>${gettext("Token")}</label>
        <input id=${`token-${turn.id}`} type="range" min="0" max=${n - 1} value=${opened ?? n - 1}
            aria-valuetext=${tokenTitle(turn, trace, opened ?? n - 1)}
            onInput=${(/** @type {any} */ event) => onOpen(Number(event.target.value))} />
    </div>`;
}

/** @param {{trace: Trace, token: number, isOpened: boolean, isDim: boolean}} props */
function Column({ trace, token, isOpened, isDim }) {
    let top = 0;
    const parts = sourcesOf(trace, token)
        .reverse()
        .filter((source) => source.share > 0)
        .map((source) => {
            const y = top;
            top += source.share;
            return html`<rect class=${colour(source)} x=${token + 0.06} y=${y} width="0.88" height=${source.share} />`;
        });
    return html`<g class=${isOpened ? "opened" : isDim ? "dim" : ""}>${parts}</g>`;
}

/** @param {import("./sources.js").Node} node */
function colour(node) {
    return `by-${node.kind} tone-${node.tone}`;
}

/** A strip of layers for each source: the fuller a cell, the more of that layer it computed. @param {{trace: Trace, opened: number | undefined}} props */
function Layers({ trace, opened }) {
    const { shown, nHidden } = largestSources(
        sourcesOf(trace, opened).filter((source) => source.share > 0),
        MOST_SOURCES,
    );
    const range = interpolate(gettext("Layers %s to %s"), [trace.layers[0] ?? 0, trace.layers.at(-1) ?? 0]);
    return html`<div class="scroll" tabindex="0" role="region" aria-label=${gettext("Sources by layer")}>
        <table class="sources">
            <caption>${gettext("The fuller a cell, the more of the layer's experts were computed there.")}</caption>
            <thead><tr><th scope="col">${gettext("Source")}</th><th scope="col">${range}</th><th scope="col" class="number">${gettext("Share")}</th></tr></thead>
            <tbody>${shown.map(
                (source) => html`<tr data-kind=${source.kind} data-worker=${source.worker}>
                <th scope="row"><span class=${`swatch ${colour(source)}`}></span>${sourceName(source, nHidden)}</th>
                <td><${Strip} source=${source} layers=${trace.layers} /></td>
                <td class="number">${formatShare(source.share)}</td>
            </tr>`,
            )}</tbody>
        </table>
    </div>`;
}

/** @param {{source: Source, layers: readonly number[]}} props */
function Strip({ source, layers }) {
    const told = layers.map((layer, number) => `${layer}: ${formatShare(source.byLayer[number])}`).join(", ");
    return html`<svg class="strip" viewBox=${`0 0 ${layers.length} 1`} preserveAspectRatio="none" role="img" aria-label=${told}>
        ${source.byLayer.map(
            (
                share,
                number,
            ) => html`<g><title>${interpolate(gettext("Layer %s: %s"), [layers[number], formatShare(share)])}</title>
            <rect class="cell" x=${number + 0.05} y="0" width="0.9" height="1" />
            <rect class=${colour(source)} x=${number + 0.05} y=${1 - share} width="0.9" height=${share} /></g>`,
        )}
    </svg>`;
}
