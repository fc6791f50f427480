/**
 * Before the first byte: what contributing means, how much memory, under which conditions, and the button.
 * `contribute/page.js` shows it while nothing runs. It starts nothing by itself.
 */

import { formatBytes } from "../../ui/format.js";
import { html, useState } from "../../ui/html.js";
import { boundText } from "./texts.js";

/** @typedef {import("../../worker/tab/messages.js").ContributionState} ContributionState */
/** @typedef {import("../../worker/tab/messages.js").StartOptions} StartOptions */
/** @typedef {StartOptions & {keepAwake: boolean}} Choice */

const STEP = 16 * 1024 * 1024;

/** What is agreed to. Every number in it is true of this device. @param {{budgetBytes: number}} props */
function Terms({ budgetBytes }) {
    const size = formatBytes(budgetBytes);
    return html`<dl class="terms">
        <dt>${gettext("What is downloaded")}</dt>
        <dd>${interpolate(
            gettext(
                "Up to %s of the model's weights, once, from this site. They stay in this browser's storage, so a reload fetches nothing twice.",
            ),
            [size],
        )}</dd>
        <dt>${gettext("What it costs you")}</dt>
        <dd>${interpolate(
            gettext(
                "Memory (%s while the tab is open), power, and data: some kilobytes each way for every row that is computed. The graphics processor or processor works whenever somebody asks the model.",
            ),
            [size],
        )}</dd>
        <dt>${gettext("What others can see")}</dt>
        <dd>${gettext(
            "Activations of other people's requests pass through this tab: numbers, not text, but a determined reader could learn something from them. The site sees your address; everybody sees on the dashboard that a browser serves these experts. The page reads nothing of yours.",
        )}</dd>
        <dt>${gettext("How to stop")}</dt>
        <dd>${gettext(
            "Pause answers at once; Leave ends it and can delete the weights; closing the tab ends it too. Credits count work that was verified. They are a unit of account, not money.",
        )}</dd>
    </dl>`;
}

/**
 * @param {{advice: import("../../worker/tab/messages.js").BudgetAdvice, budgetBytes: number,
 *   onBudget: (nBytes: number) => void}} props
 */
function Budget({ advice, budgetBytes, onBudget }) {
    const { leastBytes, mostBytes, suggestedBytes, boundBy } = advice;
    return html`<div class="budget">
        <label for="budget">${gettext("Memory budget")} <output for="budget">${formatBytes(budgetBytes)}</output></label>
        <input id="budget" type="range" min=${leastBytes} max=${mostBytes} step=${Math.min(STEP, mostBytes - leastBytes || 1)}
            value=${budgetBytes} aria-valuetext=${formatBytes(budgetBytes)} aria-describedby="budget-bound"
            onInput=${(/** @type {InputEvent} */ event) =>
                onBudget(Number(/** @type {HTMLInputElement} */ (event.target).value))} />
        <small class="ends" aria-hidden="true"><span>${formatBytes(leastBytes)}</span><span>${formatBytes(mostBytes)}</span></small>
        <small id="budget-bound">${interpolate(gettext("Suggested for this device: %s."), [formatBytes(suggestedBytes)])} ${boundText(boundBy)}</small>
    </div>`;
}

/** @param {{name: string, isOn: boolean, text: string, onChange: (isOn: boolean) => void}} props */
function Condition({ name, isOn, text, onChange }) {
    return html`<label><input type="checkbox" role="switch" name=${name} checked=${isOn}
        onChange=${(/** @type {Event} */ event) => onChange(/** @type {HTMLInputElement} */ (event.target).checked)} /> ${text}</label>`;
}

/** What only some browsers can tell. @param {{choice: Choice, onChoice: (part: Partial<Choice>) => void}} props */
function Conditions({ choice, onChoice }) {
    return html`<fieldset class="conditions">
        <legend>${gettext("Only when it suits you")}</legend>
        ${
            "getBattery" in navigator &&
            html`<${Condition} name="power" isOn=${choice.onlyOnPower} text=${gettext("Pause on battery")}
            onChange=${(/** @type {boolean} */ onlyOnPower) => onChoice({ onlyOnPower })} />`
        }
        ${
            "connection" in navigator &&
            html`<${Condition} name="unmetered" isOn=${choice.onlyUnmetered} text=${gettext("Pause on a metered connection")}
            onChange=${(/** @type {boolean} */ onlyUnmetered) => onChoice({ onlyUnmetered })} />`
        }
        ${
            "wakeLock" in navigator &&
            html`<${Condition} name="awake" isOn=${choice.keepAwake} text=${gettext("Keep the screen on meanwhile")}
            onChange=${(/** @type {boolean} */ keepAwake) => onChoice({ keepAwake })} />`
        }
    </fieldset>`;
}

/** Shown where the site asks for an invite. @param {{invite: string, onInvite: (text: string) => void}} props */
function Invite({ invite, onInvite }) {
    return html`<label>${gettext("Invite")}
        <input type="text" name="invite" value=${invite} placeholder="kvi-…" autocomplete="off" spellcheck=${false} required
            onInput=${(/** @type {Event} */ event) => onInvite(/** @type {HTMLInputElement} */ (event.target).value.trim())} />
    </label>`;
}

/** Shown to everybody on the dashboard, if given. @param {{region: string, onRegion: (text: string) => void}} props */
function Region({ region, onRegion }) {
    return html`<label>${gettext("Region, if you like")}
        <input type="text" name="region" value=${region} maxlength="40" autocomplete="off" placeholder=${gettext("such as Java or Europe")}
            aria-describedby="region-note"
            onInput=${(/** @type {Event} */ event) => onRegion(/** @type {HTMLInputElement} */ (event.target).value)} />
        <small id="region-note">${gettext("The dashboard shows it beside this worker. Nobody looks it up.")}</small>
    </label>`;
}

/**
 * The whole card. `onStart` gets what was chosen; it is only called by the button.
 * @param {{state: ContributionState, onStart: (choice: Choice) => void}} props
 */
export function Consent({ state, onStart }) {
    const { advice, settings, problem } = state;
    const [chosen, setChosen] = useState(/** @type {Partial<Choice>} */ ({}));
    if (!advice) return html`<section class="card" aria-busy="true">${gettext("Looking at this device…")}</section>`;
    if (advice.mostBytes < advice.leastBytes) return html`<${TooSmall} advice=${advice} />`;
    const wanted = chosen.budgetBytes ?? settings?.budgetBytes ?? advice.suggestedBytes;
    /** @type {Choice} */
    const choice = {
        onlyOnPower: settings?.onlyOnPower ?? false,
        onlyUnmetered: settings?.onlyUnmetered ?? false,
        region: settings?.region ?? "",
        keepAwake: false,
        ...chosen,
        budgetBytes: Math.min(advice.mostBytes, Math.max(advice.leastBytes, wanted)),
    };
    const onChoice = (/** @type {Partial<Choice>} */ part) => setChosen({ ...chosen, ...part });
    const start = (/** @type {Event} */ event) => {
        event.preventDefault();
        onStart({ ...choice, region: (choice.region ?? "").trim() });
    };
    return html`<form class="card consent" onSubmit=${start} aria-labelledby="consent-title">
        <h2 id="consent-title">${gettext("Before you start")}</h2>
        <${Terms} budgetBytes=${choice.budgetBytes} />
        <${Budget} advice=${advice} budgetBytes=${choice.budgetBytes}
            onBudget=${(/** @type {number} */ budgetBytes) => onChoice({ budgetBytes })} />
        <${Conditions} choice=${choice} onChoice=${onChoice} />
        <${Region} region=${choice.region ?? ""} onRegion=${(/** @type {string} */ region) => onChoice({ region })} />
        ${
            problem?.code === "invite_needed" &&
            html`<${Invite} invite=${choice.invite ?? ""} onInvite=${(/** @type {string} */ invite) => onChoice({ invite })} />`
        }
        <button type="submit" id="start">${gettext("Agree and contribute")}</button>
    </form>`;
}

/** @param {{advice: import("../../worker/tab/messages.js").BudgetAdvice}} props */
function TooSmall({ advice }) {
    return html`<section class="notice warn" role="status">
        <h2>${gettext("This device is too small")}</h2>
        <p>${interpolate(gettext("Contributing takes at least %s; this browser can spare %s."), [
            formatBytes(advice.leastBytes),
            formatBytes(Math.max(0, advice.mostBytes)),
        ])} ${boundText(advice.boundBy)}</p>
    </section>`;
}
