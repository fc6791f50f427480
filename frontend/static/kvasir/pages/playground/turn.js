/**
 * Something asked and its answer, while it comes and after. `playground/page.js` draws one for each turn.
 * Tokens that were traced can be opened: the text and the strip beside it point at the same one.
 */

import { formatNumber } from "../../ui/format.js";
import { html, useMemo, useState } from "../../ui/html.js";
import { textOf } from "./session.js";
import { KINDS, sharesByKind } from "./sources.js";
import { endText, failureText } from "./texts.js";
import { Computed } from "./trace.js";

/** @typedef {import("./session.js").Turn} Turn */

/** @param {{turn: Turn, isLast: boolean, onUseSeed: (seed: number) => void}} props */
export function TurnView({ turn, isLast, onUseSeed }) {
    const [opened, setOpened] = useState(/** @type {number | undefined} */ (undefined)); // number in the trace
    // The other turns are not drawn anew for every token of the one that runs.
    return useMemo(
        () => html`<article class="turn" id=${`turn-${turn.id}`} data-phase=${turn.phase} data-request=${turn.requestId}>
        ${turn.asked && html`<p class="asked"><span class="unseen">${gettext("You:")} </span>${turn.asked}</p>`}
        <div class="answer" aria-busy=${turn.phase === "waiting" || turn.phase === "streaming"}>
            <span class="unseen">${gettext("The model:")} </span>
            <${Answer} turn=${turn} opened=${opened} onOpen=${setOpened} />
        </div>
        ${turn.failure && html`<p class="notice bad" role="alert">${failureText(turn.failure)}</p>`}
        <${Status} turn=${turn} onUseSeed=${onUseSeed} />
        ${turn.traceState !== "none" && html`<${Computed} turn=${turn} isOpen=${isLast} opened=${opened} onOpen=${setOpened} />`}
    </article>`,
        [turn, isLast, opened],
    );
}

/** @param {{turn: Turn, opened: number | undefined, onOpen: (token: number | undefined) => void}} props */
function Answer({ turn, opened, onOpen }) {
    const { tokens, trace } = turn;
    if (turn.phase === "waiting") {
        const text = turn.position
            ? interpolate(gettext("Number %s in line…"), [formatNumber(turn.position)])
            : gettext("Waiting…");
        return html`<span class="muted">${text}</span>`;
    }
    if (!trace)
        return html`<span>${textOf(tokens).trimStart()}</span>${turn.phase === "streaming" && html`<span class="caret" aria-hidden="true"></span>`}`;
    const traced = tokens.slice(trace.firstToken, trace.firstToken + trace.counts.length);
    // For the mouse: with the keyboard the slider beside the strip does the same.
    return html`<span>${textOf(tokens.slice(0, trace.firstToken)).trimStart()}</span>${traced.map(
        (token, number) => html`<span
        class=${`token by-${mainKind(trace, number)}${number === opened ? " opened" : ""}`}
        onClick=${() => onOpen(number === opened ? undefined : number)}>${trace.firstToken + number ? token.text : token.text.trimStart()}</span>`,
    )}`;
}

/** Who computed most of a token. @param {import("./sources.js").Trace} trace @param {number} token */
function mainKind(trace, token) {
    const shares = sharesByKind(trace, token);
    return KINDS.reduce((best, kind) => (shares[kind] > shares[best] ? kind : best));
}

/** Read out when the answer is complete. @param {{turn: Turn, onUseSeed: (seed: number) => void}} props */
function Status({ turn, onUseSeed }) {
    const isOver = turn.endedAt > 0;
    const seconds = (turn.endedAt - turn.firstAt) / 1000;
    const rate = turn.tokens.length > 1 && seconds > 0 ? (turn.tokens.length - 1) / seconds : 0;
    return html`<p class="turn-status muted">
        <span role="status">${isOver && turn.tokens.length > 0 ? endText(turn, rate) : ""}</span>
        ${
            isOver &&
            html` <button type="button" class="quiet seed" title=${gettext("The next answers use this seed")}
            onClick=${() => onUseSeed(turn.seed)}>${interpolate(gettext("Seed %s"), [String(turn.seed)])}</button>`
        }
    </p>`;
}
