/**
 * What an error means to the page: one problem with a code and its sentence.
 * `tab_worker.js` asks for whatever ended a session or a command. Pure; nothing is published here.
 */

import { AgentEndedError, KernelError, StorageError, UnsupportedBrowserError } from "../../errors.js";

/** @import { Problem } from "./messages.js" */

/** @param {unknown} error @returns {Problem} */
export function problemOf(error) {
    const detail = error instanceof Error ? error.message : String(error);
    return { code: codeOf(error), detail, retryAtMs: 0 };
}

/** @param {unknown} error */
function codeOf(error) {
    if (error instanceof AgentEndedError) return error.code;
    if (error instanceof StorageError) return "storage_unavailable";
    if (error instanceof UnsupportedBrowserError) return "unsupported";
    return error instanceof KernelError ? "kernel" : "defect";
}
