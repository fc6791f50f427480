/**
 * /rewards: what an account earned, day by day and entry by entry, and who has earned the most. The page's script.
 */

import { formatCompact, formatCredits } from "../../ui/format.js";
import { html, render, useEffect, useState } from "../../ui/html.js";
import { isAccountKey, keepKey, loadKeys } from "../account_key.js";
import { askEntries, askLeaderboard, askRewards, rewardsCsv } from "./client.js";
import { EarnerTable, EntryTable, NodeTable, WorkTable } from "./tables.js";

/** @typedef {import("./client.js").Rewards} Rewards */
/** @typedef {import("./client.js").Entry} Entry */
/** @typedef {import("./client.js").Earner} Earner */

/** @typedef {{key: string, isOwn: boolean}} Asker */

/** @param {{rewards: Rewards}} props */
function Sums({ rewards }) {
    const balance = rewards.balance_microcredits;
    return html`<dl class="figures card">
        ${balance !== undefined && html`<div><dt>${gettext("Balance")}</dt><dd id="balance">${formatCredits(balance)} <small>${gettext("credits")}</small></dd></div>`}
        <div><dt>${gettext("Earned")}</dt><dd id="earned">${formatCredits(rewards.earned_microcredits)} <small>${gettext("credits")}</small></dd></div>
        <div><dt>${gettext("Rows paid")}</dt><dd>${formatCompact(rewards.paid_row_experts)}</dd></div>
        <div><dt>${gettext("Not paid")}</dt><dd>${formatCredits(rewards.withheld_microcredits)} <small>${gettext("credits")}</small></dd></div>
    </dl>`;
}

/** Hands a text to the visitor as a file. @param {string} name @param {string} text */
function save(name, text) {
    const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    Object.assign(document.createElement("a"), { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * Days of work with their filter.
 * @param {{asker: Asker, first: Rewards, onError: (error: any) => void}} props
 */
function Work({ asker, first, onError }) {
    const [paid, setPaid] = useState("");
    const [page, setPage] = useState({ items: first.items, next: first.next });
    const more = async (/** @type {string} */ filter, /** @type {boolean} */ isFresh) => {
        try {
            const found = await askRewards(asker.key, { paid: filter, cursor: isFresh ? "" : (page.next ?? "") });
            setPage({ items: isFresh ? found.items : [...page.items, ...found.items], next: found.next });
        } catch (error) {
            onError(error);
        }
    };
    const filter = (/** @type {Event} */ event) => {
        const { value } = /** @type {HTMLSelectElement} */ (event.target);
        setPaid(value);
        void more(value, true);
    };
    const csv = () =>
        rewardsCsv(asker.key, { paid }).then((text) => save(`kvasir-rewards-${first.id}.csv`, text), onError);
    return html`<section class="card" aria-labelledby="work-title">
        <div class="row between"><h2 id="work-title">${gettext("Days of work")}</h2>
            <div class="row"><label class="unseen" for="paid">${gettext("Show")}</label>
                <select id="paid" onChange=${filter}><option value="">${gettext("All")}</option>
                    <option value="true">${gettext("Paid")}</option><option value="false">${gettext("Not paid")}</option></select>
                <button type="button" class="secondary" id="csv" onClick=${csv}>CSV</button></div></div>
        ${page.items.length > 0 ? html`<${WorkTable} items=${page.items} />` : html`<p class="muted">${gettext("Nothing yet.")}</p>`}
        ${page.next !== null && html`<button type="button" class="secondary" onClick=${() => more(paid, false)}>${gettext("Show more")}</button>`}
    </section>`;
}

/** @param {{asker: Asker, onError: (error: any) => void}} props */
function Entries({ asker, onError }) {
    const [page, setPage] = useState(/** @type {{items: Entry[], next: string | null} | null} */ (null));
    const more = () =>
        askEntries(asker.key, page?.next ?? "").then(
            (found) => setPage({ items: [...(page?.items ?? []), ...found.items], next: found.next }),
            (error) => (error.code === "account_needed" ? undefined : onError(error)),
        );
    useEffect(() => void more(), [asker.key]);
    if (page === null || page.items.length === 0) return null;
    return html`<section class="card" aria-labelledby="entries-title">
        <h2 id="entries-title">${gettext("Ledger entries")}</h2>
        <${EntryTable} items=${page.items} />
        ${page.next !== null && html`<button type="button" class="secondary" onClick=${more}>${gettext("Show more")}</button>`}
    </section>`;
}

/** Of anybody: shown signed in or not. @param {{mine: string}} props */
function Leaderboard({ mine }) {
    const [earners, setEarners] = useState(/** @type {Earner[] | null} */ (null));
    useEffect(
        () =>
            void askLeaderboard().then(
                ({ items }) => setEarners(items),
                () => setEarners([]),
            ),
        [],
    );
    return html`<section class="card" aria-labelledby="top-title" aria-busy=${earners === null}>
        <h2 id="top-title">${gettext("Top earners")}</h2>
        ${earners && earners.length > 0 && html`<${EarnerTable} items=${earners} mine=${mine} />`}
        ${earners?.length === 0 && html`<p class="muted">${gettext("Nobody has earned anything yet. Be the first.")}</p>`}
    </section>`;
}

/** What one asker has. @param {{asker: Asker, rewards: Rewards, onSignOut: () => void, onError: (error: any) => void}} props */
function Account({ asker, rewards, onSignOut, onError }) {
    return html`<${Signed} scope=${rewards.scope} id=${rewards.id} isOwn=${asker.isOwn} onSignOut=${onSignOut} />
        <${Sums} rewards=${rewards} />
        ${
            rewards.nodes.length > 0 &&
            html`<section class="card" aria-labelledby="nodes-title">
            <h2 id="nodes-title">${gettext("Nodes")}</h2><${NodeTable} nodes=${rewards.nodes} /></section>`
        }
        <${Work} key=${rewards.id} asker=${asker} first=${rewards} onError=${onError} />
        <${Entries} key=${asker.key} asker=${asker} onError=${onError} />`;
}

function Page() {
    const [asker, setAsker] = useState(/** @type {Asker | null} */ (null));
    const [rewards, setRewards] = useState(/** @type {Rewards | null} */ (null));
    const [former, setFormer] = useState(/** @type {string[]} */ ([]));
    const [refusal, setRefusal] = useState("");
    const onError = (/** @type {any} */ error) => setRefusal(refusalText(error));
    const show = async (/** @type {Asker} */ next) => {
        setRefusal("");
        try {
            setRewards(await askRewards(next.key));
            setAsker(next);
            if (!next.isOwn) await keepKey(next.key);
        } catch (error) {
            onError(error);
        }
    };
    const signOut = async () => {
        await keepKey("");
        setRewards(null);
        setAsker(null);
    };
    useEffect(() => {
        void loadKeys().then(({ signedIn, own, nodeToken, former: kept }) => {
            setFormer(kept);
            const key = signedIn || own || nodeToken;
            if (key) void show({ key, isOwn: key !== signedIn });
        });
    }, []);
    return html`<div class="rewards">
        <div>${refusal && html`<p class="notice bad" role="alert">${refusal}</p>`}
            ${asker && rewards && html`<${Account} asker=${asker} rewards=${rewards} onSignOut=${signOut} onError=${onError} />`}
            ${(!asker || asker.isOwn) && html`<${SignIn} former=${former} onKey=${(/** @type {string} */ key) => show({ key, isOwn: false })} />`}</div>
        <div><${Leaderboard} mine=${rewards?.id ?? ""} /></div>
    </div>`;
}

const place = document.getElementById("rewards");
if (place) render(html`<${Page} />`, place);

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
