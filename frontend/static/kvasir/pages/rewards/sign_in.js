/**
 * How a visitor shows whose rewards to show: this browser's own key, or one that is entered. `rewards.js` gives what
 * is known and gets the choice.
 */

import { html, useState } from "../../ui/html.js";
import { isAccountKey } from "../account_key.js";

/** @type {Record<string, () => string>} */
const REFUSALS = {
    account_unknown: () => gettext("This is not the key of an account of this site."),
    account_closed: () => gettext("This account was closed."),
    token_refused: () => gettext("The site no longer knows this browser's node."),
    rate_limit_exceeded: () => gettext("Too many questions from this address. Wait a minute."),
    away: () => gettext("The site does not answer."),
};

/**
 * What a refusal means to a person.
 * @param {{code: string, message: string}} error
 */
export function refusalText({ code, message }) {
    return REFUSALS[code]?.() ?? message;
}

/** Accounts that this browser's worker had before. @param {{keys: string[], onKey: (key: string) => void}} props */
function Former({ keys, onKey }) {
    if (keys.length === 0) return null;
    return html`<p class="row"><span class="muted">${gettext("This browser's earlier accounts:")}</span>
        ${keys.map((key) => html`<button type="button" class="secondary mono" key=${key} onClick=${() => onKey(key)}>${key.split("-")[1]}</button>`)}</p>`;
}

/** @param {{former: string[], onKey: (key: string) => void}} props */
export function SignIn({ former, onKey }) {
    const [text, setText] = useState("");
    const [isWrong, setWrong] = useState(false);
    const submit = (/** @type {Event} */ event) => {
        event.preventDefault();
        setWrong(!isAccountKey(text));
        if (isAccountKey(text)) onKey(text);
    };
    return html`<form class="card" onSubmit=${submit} aria-labelledby="sign-in-title">
        <h2 id="sign-in-title">${gettext("Sign in")}</h2>
        <p class="muted">${gettext("With the recovery key of an account: the contributing tab shows it, and so does a native worker when it registers. It stays in this browser.")}</p>
        <label for="account-key">${gettext("Recovery key")}</label>
        <input id="account-key" class="mono" type="password" name="account-key" autocomplete="off" spellcheck=${false} placeholder="kva-…"
            value=${text} aria-invalid=${isWrong ? "true" : undefined} aria-describedby="account-key-note"
            onInput=${(/** @type {Event} */ event) => setText(/** @type {HTMLInputElement} */ (event.target).value.trim())} />
        <small id="account-key-note" aria-live="polite">${
            isWrong
                ? gettext("A key begins with kva- and has 64 signs.")
                : gettext("Contribute first if you have none.")
        }</small>
        <button type="submit">${gettext("Show my rewards")}</button>
        <${Former} keys=${former} onKey=${onKey} />
    </form>`;
}

/**
 * Who is shown, and the way out.
 * @param {{scope: string, id: string, isOwn: boolean, onSignOut: () => void}} props
 */
export function Signed({ scope, id, isOwn, onSignOut }) {
    const what = scope === "account" ? gettext("Account") : gettext("Node");
    return html`<p class="row signed">
        <span>${what} <strong class="mono" id="signed-id">${id}</strong></span>
        ${
            isOwn
                ? html`<span class="badge">${gettext("this browser's")}</span>`
                : html`<button type="button" class="quiet" id="sign-out" onClick=${onSignOut}>${gettext("Sign out")}</button>`
        }
    </p>`;
}
