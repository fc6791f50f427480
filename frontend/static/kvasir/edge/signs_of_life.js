/**
 * When a relay counts as gone: pure, over moments that the caller reads from its clock. Twin of
 * kvasir/edge/signs_of_life.py and kvasir/edge/keepalive.py.
 * The socket looks at one of these once a second. Any message is a sign of life, and so is a buffer that drains: a pong
 * may have to wait behind megabytes on a slow line.
 */

/**
 * When a silent relay is asked for a sign of life, and how long it may take to give one.
 * @typedef {{readonly intervalS: number, readonly deadlineS: number}} KeepAlive
 */

export const LOOK_EVERY_S = 1;

/**
 * The deadline is longer than Python's 5 s: a browser hears of a message when all of it is there, and 8 MiB take
 * that long at 4 Mbit/s. The relay, which sees every byte, finds a tab that is gone within 10 s all the same.
 * @type {KeepAlive}
 */
export const KEEP_ALIVE = Object.freeze({ intervalS: 3, deadlineS: 20 });

/** What a look at the clock asks for. */
export const LookResult = Object.freeze({ NOTHING: "nothing", PING: "ping", GIVE_UP: "give up" });

/** @typedef {(typeof LookResult)[keyof typeof LookResult]} KeepAliveAction */

/**
 * What to do about a side that was last heard at `heardS` and last pinged at `pingedS`.
 * @param {number} nowS
 * @param {number} heardS
 * @param {number} pingedS
 * @param {KeepAlive} settings
 * @returns {KeepAliveAction}
 */
export function keepAliveAction(nowS, heardS, pingedS, settings) {
    if (pingedS > heardS) {
        // any byte since then is a sign of life, the pong or not
        return nowS - pingedS >= settings.deadlineS ? LookResult.GIVE_UP : LookResult.NOTHING;
    }
    return nowS - heardS >= settings.intervalS ? LookResult.PING : LookResult.NOTHING;
}

/** What was heard of the other side, and when it was last asked. */
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
     * What to do now.
     * @param {number} nowS
     * @param {number} nUnsent bytes that wait to leave
     * @param {boolean} isListening whether this side reads at all: a tab that was frozen blames nobody
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
