/**
 * The two ways in which a site says no. Thrown by market_client.js, told apart by the agent.
 */

/** The site did not answer, or not now; the same question may succeed later. `code` is the site's, if it gave one. */
export class MarketAwayError extends Error {
    /**
     * @param {string} message
     * @param {number} [retryAfterS] as the site says; 0: it does not
     * @param {string} [code]
     */
    constructor(message, retryAfterS = 0, code = "") {
        super(message);
        this.name = new.target.name;
        this.retryAfterS = retryAfterS;
        this.code = code;
    }
}

/** The site answered no, and will again. */
export class MarketRefusedError extends Error {
    /** @param {number} status @param {string} code @param {string} message */
    constructor(status, code, message) {
        super(message);
        this.name = new.target.name;
        this.status = status;
        this.code = code;
    }
}
