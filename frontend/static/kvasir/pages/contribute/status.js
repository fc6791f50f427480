/**
 * What the tab does right now, how to stop it, and what it has earned. `contribute/page.js` shows it once something runs.
 * It draws the worker's state and hands on what the visitor presses.
 */

import { formatBytes, formatCompact, formatCredits, formatNumber, formatShare, formatSpan } from "../../ui/format.js";
import { html, useState } from "../../ui/html.js";
import { headline } from "./texts.js";

/** @typedef {import("../../worker/tab/messages.js").ContributionState} ContributionState */
/** @typedef {import("../../worker/tab/client.js").ContributionClient} ContributionClient */

/** Title, sentence and what went wrong. @param {{state: ContributionState}} props */
export function Now({ state }) {
    const { tone, title, text } = headline(state);
    const problem = state.problem;
    return html`<section class=${`card now ${tone}`} aria-label=${gettext("Right now")}>
        <div role="status" aria-live="polite">
            <h2><span class="dot" aria-hidden="true"></span>${title}</h2>
            <p id="activity">${text}</p>
        </div>
        <${Download} download=${state.download} />
        ${problem && state.phase !== "unsupported" && html`<${Trouble} problem=${problem} />`}
    </section>`;
}

/** True bytes. @param {{download: import("../../worker/tab/messages.js").DownloadFacts | null}} props */
function Download({ download }) {
    if (!download) return null;
    const { layer, start, stop, doneBytes, totalBytes, bytesPerS } = download;
    const left = bytesPerS > 0 ? formatSpan((totalBytes - doneBytes) / bytesPerS) : "–";
    return html`<div>
        <progress value=${doneBytes} max=${totalBytes || 1} aria-label=${gettext("Download")}></progress>
        <small>${interpolate(gettext("Layer %s, experts %s to %s · %s/s · %s left"), [
            layer,
            start,
            stop - 1,
            formatBytes(bytesPerS),
            left,
        ])}</small>
    </div>`;
}

/** @param {{problem: import("../../worker/tab/messages.js").Problem}} props */
function Trouble({ problem }) {
    const wait = problem.retryAtMs ? Math.max(0, (problem.retryAtMs - Date.now()) / 1000) : 0;
    return html`<details class="trouble">
        <summary>${
            wait > 0 ? interpolate(gettext("Trying again in %s"), [formatSpan(wait)]) : gettext("Details")
        }</summary>
        <p class="mono">${problem.code}: ${problem.detail}</p>
    </details>`;
}

/** Pause, go on, leave. @param {{state: ContributionState, client: ContributionClient}} props */
export function Controls({ state, client }) {
    const [isAsking, setAsking] = useState(false);
    const isPaused = state.phase === "paused";
    const isLeaving = state.phase === "leaving";
    if (isAsking && !isLeaving) return html`<${LeaveQuestion} client=${client} onDone=${() => setAsking(false)} />`;
    return html`<div class="row controls">
        ${
            isPaused && state.pauseReason === "visitor"
                ? html`<button type="button" id="resume" onClick=${() => client.resume()}>${gettext("Go on")}</button>`
                : html`<button type="button" id="pause" class="secondary" disabled=${state.phase !== "working"}
                onClick=${() => client.pause()}>${gettext("Pause")}</button>`
        }
        <button type="button" id="leave" class="secondary" disabled=${isLeaving} onClick=${() => setAsking(true)}>${gettext("Leave")}</button>
    </div>`;
}

/** @param {{client: ContributionClient, onDone: () => void}} props */
function LeaveQuestion({ client, onDone }) {
    const leave = (/** @type {boolean} */ erase) => {
        client.leave({ erase });
        onDone();
    };
    return html`<div class="notice" role="group" aria-label=${gettext("Leave")}>
        <p>${gettext("Keep the downloaded weights for the next time?")}</p>
        <div class="row">
            <button type="button" id="leave-keep" onClick=${() => leave(false)}>${gettext("Leave, keep weights")}</button>
            <button type="button" id="leave-erase" class="bad" onClick=${() => leave(true)}>${gettext("Leave and delete them")}</button>
            <button type="button" class="secondary" onClick=${onDone}>${gettext("Stay")}</button>
        </div>
    </div>`;
}

/** One number with its name. @param {{name: string, value: string, note?: string, id?: string}} props */
function Figure({ name, value, note, id }) {
    return html`<div><dt>${name}</dt><dd id=${id}>${value}${note && html` <small>${note}</small>`}</dd></div>`;
}

/** What was served and what it earned. @param {{state: ContributionState}} props */
export function Figures({ state }) {
    const { served, rewards, startedAtMs } = state;
    const rate = rewards?.rateMicrocredits ?? 0;
    return html`<section class="card" aria-labelledby="work-title">
        <h2 id="work-title">${gettext("Work and credits")}</h2>
        <dl class="figures">
            <${Figure} id="rows-served" name=${gettext("Rows served")} value=${formatCompact(served.nRowExperts)}
                note=${interpolate(gettext("%s/s now"), [formatCompact(served.rowExpertsPerS)])} />
            <${Figure} id="verified" name=${gettext("Verified")} value=${rewards ? formatShare(rewards.verifiedShare) : "–"} />
            <${Figure} id="earned" name=${gettext("Credits earned")} value=${rewards ? formatCredits(rewards.earnedMicrocredits) : "–"} />
            <${Figure} id="pending" name=${gettext("Pending")} value=${rewards ? formatCredits(rewards.pendingMicrocredits) : "–"} />
            <${Figure} name=${gettext("Rate")} value=${rate ? formatNumber(rate) : "–"} note=${gettext("microcredits a row")} />
            <${Figure} name=${gettext("Time")} value=${startedAtMs ? formatSpan((Date.now() - startedAtMs) / 1000) : "–"} />
        </dl>
        <p class="muted">${gettext("A row is one token through one expert. It is paid once a check has vouched for it.")}
            ${" "}<a href="/rewards" target="_blank" rel="noopener">${gettext("All rewards")}</a></p>
    </section>`;
}

const BACKENDS = { webgpu: "WebGPU", wasm: "WebAssembly" };

/** @param {{state: ContributionState}} props */
export function Device({ state }) {
    const { device, kernel, storage } = state;
    if (!device) return null;
    const backends = kernel
        ? kernel.backends.map((backend) => BACKENDS[backend]).join(" + ")
        : [device.hasWebGpu && BACKENDS.webgpu, device.hasWasmSimd && BACKENDS.wasm].filter(Boolean).join(", ") || "–";
    return html`<section class="card" aria-labelledby="device-title">
        <h2 id="device-title">${gettext("This device")}</h2>
        <dl class="facts">
            <dt>${gettext("Computes with")}</dt><dd id="backends">${backends}</dd>
            ${device.hasWebGpu && device.adapter && html`<dt>${gettext("Graphics")}</dt><dd>${device.adapter}</dd>`}
            ${kernel && html`<dt>${gettext("Loaded")}</dt><dd>${formatBytes(kernel.loadedBytes)}</dd>`}
            ${storage.usedBytes > 0 && html`<dt>${gettext("Stored")}</dt><dd>${formatBytes(storage.usedBytes)}</dd>`}
            ${kernel && html`<dt>${gettext("Kernel")}</dt><dd class="mono">${kernel.name} ${kernel.fingerprint.slice(0, 8)}</dd>`}
        </dl>
    </section>`;
}

/** @param {{state: ContributionState, client: ContributionClient}} props */
export function Identity({ state, client }) {
    const { nodeId, accountId, hasRecoveryKey } = state.identity;
    const [key, setKey] = useState("");
    if (!nodeId) return null;
    return html`<section class="card" aria-labelledby="identity-title">
        <h2 id="identity-title">${gettext("Identity")}</h2>
        <dl class="facts">
            <dt>${gettext("Node")}</dt><dd class="mono" id="node-id">${nodeId}</dd>
            ${accountId && html`<dt>${gettext("Account")}</dt><dd class="mono">${accountId}</dd>`}
        </dl>
        ${
            hasRecoveryKey &&
            html`<p class="muted">${gettext(
                "Whoever has the recovery key has the account. Write it down: this browser is the only place that knows it.",
            )}</p>`
        }
        ${
            key
                ? html`<label>${gettext("Recovery key")}<input class="mono" id="recovery-key" readonly value=${key}
                onFocus=${(/** @type {FocusEvent} */ event) => /** @type {HTMLInputElement} */ (event.target).select()} /></label>`
                : hasRecoveryKey &&
                  html`<button type="button" class="secondary" id="show-key"
                onClick=${async () => setKey(await client.recoveryKey())}>${gettext("Show the recovery key")}</button>`
        }
    </section>`;
}

/** For browsers that cannot: which can, and the way without a browser. */
export function Unsupported() {
    const command = `kvasir-worker join ${location.origin} --budget 2GiB`;
    return html`<section class="card">
        <h2>${gettext("Browsers that can")}</h2>
        <p>${gettext("WebGPU: Chrome or Edge from 113, Safari from 26, Firefox from 141 on Windows. WebAssembly SIMD: Chrome or Edge from 91, Firefox from 89, Safari from 16.4.")}</p>
        <h2>${gettext("Without a browser")}</h2>
        <p>${gettext("The native worker does the same from a terminal:")}</p>
        <pre class="command" tabindex="0">${command}</pre>
    </section>`;
}
