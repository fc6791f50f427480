/**
 * /contribute: makes this tab a worker and shows what it does. The page's script; base.html loads it on that page alone.
 * All work is in tab/main.js: what is here only draws its state and hands on what the visitor presses.
 */

import { html, render, useEffect, useState } from "../../ui/html.js";
import { ContributionClient } from "../../worker/tab/client.js";
import { keepOwnKey, loadKeys } from "../account_key.js";
import { Consent } from "./consent.js";
import { HeldMap } from "./map.js";
import { Controls, Device, Figures, Identity, Now, Unsupported } from "./status.js";

/** @typedef {import("../../worker/tab/messages.js").ContributionState} ContributionState */

const RUNNING = new Set(["starting", "working", "paused", "recovering", "leaving"]);

/**
 * Other pages open in tabs of their own while this one works: leaving this page would end it.
 * @param {boolean} isRunning
 */
function keepThisTab(isRunning) {
    for (const link of document.querySelectorAll("header a, footer a")) {
        if (isRunning) link.setAttribute("target", "_blank");
        else link.removeAttribute("target");
    }
}

/** @param {{client: ContributionClient}} props */
function Contribute({ client }) {
    const [state, setState] = useState(client.state);
    useEffect(() => client.subscribe(setState), [client]);
    const isRunning = RUNNING.has(state.phase);
    useEffect(() => {
        const clock = isRunning ? setInterval(() => setState({ ...client.state }), 1000) : 0; // times go on
        return () => clearInterval(clock);
    }, [client, isRunning]);
    useEffect(() => keepThisTab(isRunning), [isRunning]);
    if (state.phase === "unsupported") return html`<${Now} state=${state} /><${Unsupported} />`;
    const start = async (/** @type {import("./consent.js").Choice} */ { keepAwake, ...options }) => {
        client.setKeepAwake(keepAwake);
        const keys = await loadKeys();
        if (keys.signedIn) await keepOwnKey(keys); // signed in on the rewards page: the node is then that account's
        client.start(keys.signedIn ? { ...options, accountKey: keys.signedIn } : options);
    };
    const needsReload = state.problem?.code === "reload_needed";
    const mayStart = !needsReload && (state.phase === "idle" || state.phase === "failed");
    return html`<div class="contribute">
        <div>
            ${(state.phase !== "idle" || state.problem) && html`<${Now} state=${state} />`}
            ${isRunning && html`<${Controls} state=${state} client=${client} />`}
            ${needsReload && html`<p><button type="button" id="reload" onClick=${() => location.reload()}>${gettext("Reload the page")}</button></p>`}
            ${mayStart && html`<${Consent} state=${state} onStart=${start} />`}
            ${isRunning && html`<${Figures} state=${state} />`}
            ${isRunning && html`<p class="muted">${gettext("Keep this tab open: it works in the background too. Other pages open beside it.")}</p>`}
        </div>
        <div>
            ${isRunning && html`<${HeldMap} state=${state} />`}
            <${Device} state=${state} />
            <${Identity} state=${state} client=${client} />
        </div>
    </div>`;
}

const place = document.getElementById("contribute");
if (place) {
    const client = new ContributionClient({ software: new URLSearchParams(location.search).get("software") === "1" });
    render(html`<${Contribute} client=${client} />`, place);
}
