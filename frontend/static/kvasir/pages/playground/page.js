/**
 * /playground: a chat with the model, and where each answer was computed. The page's script; base.html loads it there.
 * The conversation is in playground/session.js: what is here draws it and hands on what the visitor does.
 */

import { formatNumber } from "../../ui/format.js";
import { html, render, useEffect, useMemo, useRef, useState } from "../../ui/html.js";
import { AgentMemory } from "../../worker/agent/state.js";
import { RecordStore } from "../../worker/tab/record_store.js";
import { PlaygroundSession, textOf } from "./session.js";
import { Access, Sampling } from "./settings.js";
import { KINDS, sharesByKind } from "./sources.js";
import { endText, failureText } from "./texts.js";
import { Computed } from "./trace.js";

/** @typedef {import("./session.js").PlaygroundState} PlaygroundState */
/** @typedef {import("./session.js").Turn} Turn */

const STORIES = [
    "Once upon a time, there was a little girl named Lily.",
    "Tom had a red ball. One day,",
    "The little dragon",
];

/** The node that a tab of this browser is, for the strip. @returns {Promise<string>} */
async function ownNodeId() {
    try {
        const records = await RecordStore.open();
        const { identity } = await AgentMemory.load(records);
        records.database.close();
        return identity.nodeId;
    } catch {
        return ""; // no storage: then this browser is no worker
    }
}

/** @param {{session: PlaygroundSession}} props */
function Playground({ session }) {
    const [state, setState] = useState(session.state);
    useEffect(() => session.subscribe(setState), [session]);
    useEffect(() => void session.load(), [session]);
    const isBusy = state.turns.some((turn) => turn.phase === "waiting" || turn.phase === "streaming");
    return html`<div class="playground">
        <section class="talk" aria-labelledby="conversation">
            <h2 id="conversation" class="unseen">${gettext("Conversation")}</h2>
            ${state.problem && html`<${Trouble} session=${session} problem=${state.problem} />`}
            <${Conversation} state=${state} session=${session} />
            <${Composer} session=${session} state=${state} isBusy=${isBusy} />
        </section>
        <aside aria-label=${gettext("Settings")}>
            <${Sampling} session=${session} state=${state} />
            <${Access} session=${session} state=${state} />
        </aside>
    </div>`;
}

/** @param {{session: PlaygroundSession, problem: import("./api.js").ApiFailure}} props */
function Trouble({ session, problem }) {
    return html`<div class="notice warn" role="alert">
        <p>${failureText(problem)}</p>
        <p><button type="button" class="secondary" onClick=${() => session.load()}>${gettext("Try again")}</button></p>
    </div>`;
}

/** @param {{state: PlaygroundState, session: PlaygroundSession}} props */
function Conversation({ state, session }) {
    const last = state.turns.at(-1);
    if (!last) return html`<${Welcome} session=${session} state=${state} />`;
    return html`<div class="turns">
        ${state.turns.map(
            (turn) => html`<${TurnView} key=${turn.id} turn=${turn} isLast=${turn === last}
            onUseSeed=${(/** @type {number} */ seed) => session.choose({ seed: String(seed) })} />`,
        )}
    </div>`;
}

/** What one could ask. @param {{session: PlaygroundSession, state: PlaygroundState}} props */
function Welcome({ session, state }) {
    const model = session.model;
    if (!model) return html`<p class="muted" role="status">${state.problem ? "" : gettext("Looking for a model…")}</p>`;
    const chats = [gettext("Explain a mixture of experts to a child."), gettext("Write a short poem about honey.")];
    return html`<div class="welcome card">
        <p>${
            model.hasChat
                ? gettext("Ask anything. After the answer you see which worker computed how much of it.")
                : gettext(
                      "This model has no chat template: it goes on from what you write. After the answer you see which worker computed how much of it.",
                  )
        }</p>
        <ul class="examples" aria-label=${gettext("Examples")}>
            ${(model.hasChat ? chats : STORIES).map(
                (text) => html`<li><button type="button" class="secondary example"
                onClick=${() => session.ask(text)}>${text}</button></li>`,
            )}
        </ul>
    </div>`;
}

/** @param {{session: PlaygroundSession, state: PlaygroundState, isBusy: boolean}} props */
function Composer({ session, state, isBusy }) {
    const [text, setText] = useState("");
    const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
    const model = session.model;
    const goesOn = Boolean(model && !model.hasChat && state.turns.length);
    const maySend = Boolean(model) && !isBusy && (text.trim() !== "" || goesOn);
    const send = () => {
        if (!maySend) return;
        void session.ask(text.trim());
        setText("");
        field.current?.focus();
    };
    const onKey = (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        send();
    };
    return html`<form class="composer" onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        send();
    }}>
        <label for="asked" class="unseen">${gettext("Your text")}</label>
        <textarea id="asked" ref=${field} rows="2" value=${text} onKeyDown=${onKey} enterkeyhint="send"
            placeholder=${goesOn ? gettext("Write on, or let the model go on…") : gettext("Write something…")}
            onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea>
        <div class="row">
            ${
                isBusy // keys: were both one element, a click on Stop would end as one on Send
                    ? html`<button key="stop" type="button" id="stop" class="bad" onClick=${() => session.stop()}>${gettext("Stop")}</button>`
                    : html`<button key="send" type="submit" id="send" disabled=${!maySend}>${goesOn && !text.trim() ? gettext("Go on") : gettext("Send")}</button>`
            }
            ${state.turns.length > 0 && html`<button type="button" id="new" class="secondary" onClick=${() => session.clear()}>${gettext("New")}</button>`}
            <small>${gettext("Enter sends, Shift+Enter begins a line.")}</small>
        </div>
    </form>`;
}

const place = document.getElementById("playground");
if (place) render(html`<${Playground} session=${new PlaygroundSession(ownNodeId)} />`, place);

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
