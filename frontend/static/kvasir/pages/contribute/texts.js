/**
 * Texts of the contributing tab: the meaning of each phase, activity and problem, and what the visitor can do. The
 * codes are those of worker/tab/messages.js.
 */

import { formatBytes } from "../../ui/format.js";

/** @typedef {import("../../worker/tab/messages.js").ContributionState} ContributionState */
/** @typedef {{tone: "" | "good" | "warn" | "bad", title: string, text: string}} Headline */

/** @type {Record<string, () => string>} */
const ACTIVITIES = {
    none: () => gettext("Getting ready"),
    registering: () => gettext("Registering with the site"),
    asking: () => gettext("Asking the site for work"),
    downloading: () => gettext("Downloading experts"),
    verifying: () => gettext("Verifying the download"),
    loading: () => gettext("Loading experts into memory"),
    dialling: () => gettext("Connecting to the relay"),
    serving: () => gettext("Serving: this tab computes whenever someone uses the model"),
    waiting: () => gettext("Waiting: there is no work at the moment"),
};

/** @type {Record<string, () => string>} */
const PAUSES = {
    "": () => gettext("This tab takes no new work. The experts stay loaded."),
    visitor: () => gettext("This tab takes no new work. The experts stay loaded."),
    battery: () => gettext("The device runs on battery. Work resumes when it is plugged in."),
    metered: () => gettext("The connection is metered. Work resumes on an unmetered connection."),
};

/** @type {Record<string, () => string>} */
const PROBLEMS = {
    site_away: () => gettext("The site does not answer."),
    relay_away: () => gettext("The relay does not answer."),
    nothing_wanted: () => gettext("Every expert has enough replicas now. This tab waits and asks again."),
    no_room: () => gettext("None of the needed experts fits into the budget. A larger budget may help."),
    download_failed: () => gettext("A download failed."),
    quarantined: () => gettext("The site no longer trusts this node: it gave a wrong answer. Ask the operator."),
    token_refused: () => gettext("The site no longer knows this node."),
    invite_needed: () => gettext("This site takes new nodes by invitation only."),
    registration_closed: () => gettext("This site takes no new nodes."),
    refused: () => gettext("The site refused a request of this tab."),
    storage_unavailable: () =>
        gettext("This page cannot store data in this browser. A private window may be the reason."),
    memory: () => gettext("The device ran out of memory. Choose a smaller budget."),
    gpu_lost: () => gettext("The kernel of this tab stopped or failed a check. It is being restarted."),
    reload_needed: () => gettext("The graphics processor could not be restarted. Reload the page."),
    kernel: () => gettext("This device does not compute exactly as specified, so it cannot contribute."),
    unsupported: () => gettext("This browser has neither WebGPU nor WebAssembly SIMD."),
    model_changed: () => gettext("The site serves another model now. This tab starts again with it."),
    defect: () => gettext("Something went wrong in this page."),
};

/**
 * @param {string} code
 * @returns {string}
 */
export function problemText(code) {
    return (PROBLEMS[code] ?? PROBLEMS.defect)();
}

/**
 * Return a title and a sentence for the tab's state.
 * @param {ContributionState} state
 * @returns {Headline}
 */
export function headline(state) {
    switch (state.phase) {
        case "starting":
            return { tone: "warn", title: gettext("Starting"), text: gettext("Storage, kernel and self-test") };
        case "working":
            return working(state);
        case "paused":
            return { tone: "warn", title: gettext("Paused"), text: PAUSES[state.pauseReason]() };
        case "recovering":
            return { tone: "warn", title: gettext("Recovering"), text: problemText(state.problem?.code ?? "gpu_lost") };
        case "leaving":
            return { tone: "warn", title: gettext("Leaving"), text: gettext("Finishing requests in progress") };
        case "elsewhere":
            return {
                tone: "warn",
                title: gettext("Another tab of this browser contributes already"),
                text: gettext("One tab is enough. Close the other one to continue here."),
            };
        case "unsupported":
            return { tone: "bad", title: gettext("This browser cannot contribute"), text: problemText("unsupported") };
        case "failed":
            return { tone: "bad", title: gettext("Stopped"), text: problemText(state.problem?.code ?? "defect") };
        default:
            return { tone: "", title: gettext("Not contributing"), text: gettext("Nothing runs and nothing is sent.") };
    }
}

/**
 * @param {ContributionState} state
 * @returns {Headline}
 */
function working(state) {
    const isServing = state.activity === "serving";
    const title = isServing ? gettext("Contributing") : gettext("Preparing");
    let text = ACTIVITIES[state.activity]();
    if (state.activity === "downloading" && state.download) {
        const { doneBytes, totalBytes } = state.download;
        text = interpolate(gettext("Downloading experts: %s of %s"), [formatBytes(doneBytes), formatBytes(totalBytes)]);
    }
    return { tone: isServing ? "good" : "warn", title, text };
}

/**
 * Return the text for the limit of the budget.
 * @param {"memory" | "gpu" | "disk" | "mobile"} boundBy
 */
export function boundText(boundBy) {
    const texts = {
        memory: gettext("This device's memory sets the maximum."),
        gpu: gettext("The graphics processor's memory sets the maximum."),
        disk: gettext("The browser's storage for this site sets the maximum."),
        mobile: gettext("The maximum is what is safe on a phone or tablet."),
    };
    return texts[boundBy];
}
