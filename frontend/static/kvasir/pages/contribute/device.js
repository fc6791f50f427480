/**
 * What the device computes with, and the key that brings the identity back elsewhere. `contribute/page.js` shows both; the
 * key is only asked for when the visitor wants to see it.
 */

import { formatBytes } from "../../ui/format.js";
import { html, useState } from "../../ui/html.js";

/** @typedef {import("../../worker/tab/messages.js").ContributionState} ContributionState */
/** @typedef {import("../../worker/tab/client.js").ContributionClient} ContributionClient */

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
