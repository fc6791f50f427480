/**
 * Why an agent ends by itself: a code for the page and a sentence with the values.
 * `agent.js` throws it, `tab_worker.js` publishes it as the state's problem.
 */

const INVITE_CODES = ["invite_needed", "invite_unknown", "invite_expired", "invite_used"];

export class AgentEndedError extends Error {
    /** @param {string} code  of `Problem` in messages.js @param {string} detail @param {ErrorOptions} [options] */
    constructor(code, detail, options) {
        super(detail, options);
        this.name = "AgentEndedError";
        this.code = code;
    }
}

/**
 * What the site's refusal means.
 * @param {{status: number, code: string, message: string}} refused @returns {AgentEndedError}
 */
export function endedByRefusal({ status, code, message }) {
    if (INVITE_CODES.includes(code)) return new AgentEndedError("invite_needed", message);
    if (code === "registration_closed") return new AgentEndedError(code, message);
    return new AgentEndedError(status === 401 ? "token_refused" : "refused", message);
}
