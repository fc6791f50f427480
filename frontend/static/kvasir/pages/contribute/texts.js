/**
 * Sentences of the contributing tab: what a phase, an activity or a problem means to a visitor, and what can be done.
 * The page's pieces call it; the codes are those of worker/messages.js.
 */

import { formatBytes } from "../../ui/format.js";

/** @typedef {import("../../worker/tab/messages.js").ContributionState} ContributionState */
/** @typedef {{tone: "" | "good" | "warn" | "bad", title: string, text: string}} Headline */

/** @type {Record<string, () => string>} */
const ACTIVITIES = {
    none: () => gettext("Getting ready"),
    registering: () => gettext("Introducing itself to the site"),
    asking: () => gettext("Asking what is needed most"),
    downloading: () => gettext("Downloading experts"),
    verifying: () => gettext("Checking what came, byte for byte"),
    loading: () => gettext("Loading experts into memory"),
    dialling: () => gettext("Connecting to the relay"),
    serving: () => gettext("Serving: this tab computes whenever somebody asks the model"),
    waiting: () => gettext("Waiting: nothing is needed at the moment"),
};

/** @type {Record<string, () => string>} */
const PAUSES = {
    "": () => gettext("Nothing new is taken; what is loaded stays."),
    visitor: () => gettext("Nothing new is taken; what is loaded stays."),
    battery: () => gettext("The device runs on battery. It goes on by itself once it has power."),
    metered: () => gettext("The connection is metered. It goes on by itself on another one."),
};

/** @type {Record<string, () => string>} */
const PROBLEMS = {
    site_away: () => gettext("The site does not answer."),
    relay_away: () => gettext("The relay does not answer."),
    nothing_wanted: () => gettext("Every expert has enough replicas just now. This tab waits and asks again."),
    no_room: () => gettext("Nothing that is needed fits into the budget. A larger budget may help."),
    download_failed: () => gettext("A download did not arrive as it should."),
    quarantined: () => gettext("The site no longer trusts this node: it gave a wrong answer. Ask the operator."),
    token_refused: () => gettext("The site no longer knows this node."),
    invite_needed: () => gettext("This site takes new nodes by invitation only."),
    registration_closed: () => gettext("This site takes no new nodes."),
    refused: () => gettext("The site refused what this tab asked."),
    storage_unavailable: () => gettext("This browser gives the page no storage. A private window may be the reason."),
    memory: () => gettext("The device ran out of memory. Choose a smaller budget."),
    gpu_lost: () => gettext("What this tab computes with went away, or failed a check. It is being started again."),
    reload_needed: () => gettext("The graphics processor does not come back. Reload the page."),
    kernel: () => gettext("This device computes differently from the specification, so it may not serve."),
    unsupported: () => gettext("This browser has neither WebGPU nor WebAssembly SIMD."),
    model_changed: () => gettext("The site serves another model now. This tab starts anew with it."),
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
 * What the tab is doing right now, in a title and a sentence.
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
            return { tone: "warn", title: gettext("Leaving"), text: gettext("Answering what is under way") };
        case "elsewhere":
            return {
                tone: "warn",
                title: gettext("Another tab of this browser contributes already"),
                text: gettext("One is enough. Close it to go on here."),
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
    const title = isServing ? gettext("Contributing") : gettext("On the way");
    let text = ACTIVITIES[state.activity]();
    if (state.activity === "downloading" && state.download) {
        const { doneBytes, totalBytes } = state.download;
        text = interpolate(gettext("Downloading experts: %s of %s"), [formatBytes(doneBytes), formatBytes(totalBytes)]);
    }
    return { tone: isServing ? "good" : "warn", title, text };
}

/**
 * What limits the budget.
 * @param {"memory" | "gpu" | "disk" | "mobile"} boundBy
 */
export function boundText(boundBy) {
    const texts = {
        memory: gettext("The most is what this device's memory allows."),
        gpu: gettext("The most is what the graphics processor's memory allows."),
        disk: gettext("The most is what the browser lets this site store."),
        mobile: gettext("The most is what is safe on a phone or tablet."),
    };
    return texts[boundBy];
}
