/**
 * /playground: a chat with the model, and where each answer was computed. The page's script; base.html loads it there.
 * The conversation is in playground/session.js: what is here draws it and hands on what the visitor does.
 */

import { html, render, useEffect, useRef, useState } from "../../ui/html.js";
import { AgentMemory } from "../../worker/agent/state.js";
import { RecordStore } from "../../worker/tab/record_store.js";
import { PlaygroundSession } from "./session.js";
import { Access, Sampling } from "./settings.js";
import { failureText } from "./texts.js";
import { TurnView } from "./turn.js";

/** @typedef {import("./session.js").PlaygroundState} PlaygroundState */

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

/** @param {{session: PlaygroundSession, problem: import("./stream.js").ApiFailure}} props */
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
