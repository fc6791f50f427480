/**
 * How the model is asked, and with which key. `playground/page.js` shows both beside the conversation.
 * It hands choices to the session and keeps nothing.
 */

import { formatNumber } from "../../ui/format.js";
import { html, useState } from "../../ui/html.js";

/** @typedef {import("./session.js").PlaygroundSession} PlaygroundSession */
/** @typedef {import("./session.js").PlaygroundState} PlaygroundState */
/** @typedef {import("./session.js").Settings} Settings */

/** @param {{session: PlaygroundSession, state: PlaygroundState}} props */
export function Sampling({ session, state }) {
    const { settings, models } = state;
    const choose = (/** @type {Partial<Settings>} */ change) => session.choose(change);
    return html`<details class="card sampling" open=${matchMedia("(min-width: 56.01rem)").matches}>
        <summary><h2>${gettext("Sampling")}</h2></summary>
        <label>${gettext("Model")}
            <select id="model" value=${settings.model} onChange=${(/** @type {any} */ event) => choose({ model: event.target.value })}>
                ${models.map((model) => html`<option value=${model.id}>${model.id}</option>`)}
            </select>
        </label>
        ${
            session.model?.hasChat &&
            html`<label>${gettext("What the model is told first")}
            <textarea id="system" rows="2" value=${settings.system} onInput=${(/** @type {any} */ event) => choose({ system: event.target.value })}></textarea></label>`
        }
        <${Slider} id="temperature" name=${gettext("Temperature")} value=${settings.temperature} least=${0} most=${2} step=${0.05}
            note=${gettext("0 takes the likeliest token.")} onChoose=${(/** @type {number} */ temperature) => choose({ temperature })} />
        <${Slider} id="top-p" name=${gettext("Top p")} value=${settings.topP} least=${0.05} most=${1} step=${0.05}
            onChoose=${(/** @type {number} */ topP) => choose({ topP })} />
        <${Slider} id="repetition" name=${gettext("Repetition penalty")} value=${settings.repetitionPenalty} least=${1} most=${2} step=${0.05}
            onChoose=${(/** @type {number} */ repetitionPenalty) => choose({ repetitionPenalty })} />
        <div class="pair">
            <${Count} id="top-k" name=${gettext("Top k")} value=${settings.topK} least=${0} most=${10_000} note=${gettext("0: off")}
                onChoose=${(/** @type {number} */ topK) => choose({ topK })} />
            <${Count} id="max-tokens" name=${gettext("Most tokens")} value=${settings.maxTokens} least=${1} most=${session.model?.nCtx ?? 4096}
                onChoose=${(/** @type {number} */ maxTokens) => choose({ maxTokens })} />
        </div>
        <label>${gettext("Seed")}
            <input id="seed" inputmode="numeric" pattern="[0-9]*" maxlength="16" value=${settings.seed} placeholder=${gettext("random")}
                aria-describedby="seed-note" onInput=${(/** @type {any} */ event) => choose({ seed: event.target.value.replace(/\D/g, "") })} />
            <small id="seed-note">${gettext("The same seed gives the same text, whoever computes it.")}</small>
        </label>
    </details>`;
}

/**
 * @param {{id: string, name: string, value: number, least: number, most: number, step: number, note?: string,
 *   onChoose: (value: number) => void}} props
 */
function Slider({ id, name, value, least, most, step, note, onChoose }) {
    return html`<label class="slider" for=${id}><span>${name}</span><output>${formatNumber(value, 2)}</output></label>
        <input id=${id} type="range" min=${least} max=${most} step=${step} value=${value} aria-describedby=${note ? `${id}-note` : undefined}
            onInput=${(/** @type {any} */ event) => onChoose(Number(event.target.value))} />
        ${note && html`<small class="note" id=${`${id}-note`}>${note}</small>`}`;
}

/**
 * A whole number; what is none, or out of its range, is put right when the field is left.
 * @param {{id: string, name: string, value: number, least: number, most: number, note?: string,
 *   onChoose: (value: number) => void}} props
 */
function Count({ id, name, value, least, most, note, onChoose }) {
    const change = (/** @type {any} */ event) => {
        const wanted = Math.round(Number(event.target.value)) || least;
        const chosen = Math.min(most, Math.max(least, wanted));
        event.target.value = String(chosen);
        onChoose(chosen);
    };
    return html`<label>${name}<input id=${id} type="number" min=${least} max=${most} step="1" value=${value} onChange=${change} />
        ${note && html`<small>${note}</small>`}</label>`;
}

/** @param {{session: PlaygroundSession, state: PlaygroundState}} props */
export function Access({ session, state }) {
    const [text, setText] = useState("");
    const use = (/** @type {Event} */ event) => {
        event.preventDefault();
        void session.useKey(text);
        setText("");
    };
    const needsKey = !state.hasOwnKey && state.problem?.code === "playground_off";
    return html`<details class="card access" open=${needsKey}>
        <summary><h2>${gettext("Key")}</h2></summary>
        <p>${
            state.hasOwnKey
                ? gettext("You ask with a key of your own. It stays in this tab and is gone with it.")
                : gettext("You ask as a visitor: with a key that ends after an hour, and a few requests a minute.")
        }</p>
        ${
            state.hasOwnKey
                ? html`<button type="button" id="as-visitor" class="secondary" onClick=${() => session.useKey("")}>${gettext("Go on as a visitor")}</button>`
                : html`<form onSubmit=${use}>
                <label for="own-key">${gettext("A key of your own")}</label>
                <input id="own-key" type="password" autocomplete="off" spellcheck="false" placeholder="kvk-…" value=${text}
                    onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
                <button type="submit" class="secondary" disabled=${!text.trim()}>${gettext("Use this key")}</button>
            </form>`
        }
    </details>`;
}
