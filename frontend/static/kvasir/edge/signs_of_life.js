/**
 * When a relay counts as gone: a pure rule over times that the caller reads from its clock. The socket calls `look`
 * once a second. Any message is a sign of life, and so is a send buffer that drains, since a pong may have to wait
 * behind megabytes on a slow line.
 */

/**
 * How long a relay may be silent before a ping, and how long it may take to answer.
 * @typedef {{readonly intervalS: number, readonly deadlineS: number}} KeepAlive
 */

export const LOOK_EVERY_S = 1;

/**
 * The deadline is longer than Python's 5 s: a browser reports a message only when it is complete, and 8 MiB take that
 * long at 4 Mbit/s. The relay sees every byte, and still finds a tab that is gone within 10 s.
 * @type {KeepAlive}
 */
export const KEEP_ALIVE = Object.freeze({ intervalS: 3, deadlineS: 20 });

/** What to do after a look at the clock. */
export const LookResult = Object.freeze({ NOTHING: "nothing", PING: "ping", GIVE_UP: "give up" });

/** @typedef {(typeof LookResult)[keyof typeof LookResult]} KeepAliveAction */

/**
 * Return what to do about a peer that was last heard at `heardS` and last pinged at `pingedS`.
 * @param {number} nowS
 * @param {number} heardS
 * @param {number} pingedS
 * @param {KeepAlive} settings
 * @returns {KeepAliveAction}
 */
export function keepAliveAction(nowS, heardS, pingedS, settings) {
    if (pingedS > heardS) {
        // any byte since the ping counts, not only the pong
        return nowS - pingedS >= settings.deadlineS ? LookResult.GIVE_UP : LookResult.NOTHING;
    }
    return nowS - heardS >= settings.intervalS ? LookResult.PING : LookResult.NOTHING;
}

/** When the relay was last heard, and when it was last pinged. */
export class SignsOfLife {
    #settings;
    #pingedS;
    #nUnsent = 0;

    /**
     * @param {number} nowS
     * @param {KeepAlive} [settings]
     */
    constructor(nowS, settings = KEEP_ALIVE) {
        this.#settings = settings;
        this.#pingedS = nowS - 1;
        this.heardS = nowS;
    }

    /** @param {number} nowS @returns {number} seconds since the last sign */
    silentS(nowS) {
        return nowS - this.heardS;
    }

    /**
     * Return what to do now.
     * @param {number} nowS
     * @param {number} nUnsent bytes that are not sent yet
     * @param {boolean} isListening whether this side was reading: false after the tab was frozen
     * @returns {KeepAliveAction}
     */
    look(nowS, nUnsent, isListening) {
        if (nUnsent < this.#nUnsent || !isListening) this.heardS = nowS;
        this.#nUnsent = nUnsent;
        const action = keepAliveAction(nowS, this.heardS, this.#pingedS, this.#settings);
        if (action === LookResult.PING) this.#pingedS = nowS;
        return action;
    }
}
