/**
 * What the relay client takes from the browser: a clock, timers and sockets. Tests bring their own; nothing else here
 * touches the world.
 */

/**
 * What is used of a WebSocket.
 * @typedef {object} SocketLike
 * @property {string} binaryType
 * @property {number} bufferedAmount
 * @property {((event: any) => void) | null} onopen
 * @property {((event: {data: unknown}) => void) | null} onmessage
 * @property {((event: {code: number, reason: string}) => void) | null} onclose
 * @property {(data: Uint8Array<ArrayBuffer>) => void} send
 * @property {(code?: number, reason?: string) => void} close
 */

/**
 * @typedef {object} Outside
 * @property {() => number} nowS seconds of a clock that never goes back
 * @property {(seconds: number, then: () => void) => {cancel: () => void}} after
 * @property {(url: string) => SocketLike} openSocket
 */

/** @type {Outside} */
export const REAL_OUTSIDE = Object.freeze({
    nowS: () => performance.now() / 1000,
    /** @param {number} seconds @param {() => void} then */
    after: (seconds, then) => {
        const timer = setTimeout(then, 1000 * seconds);
        return { cancel: () => clearTimeout(timer) };
    },
    /** @param {string} url @returns {SocketLike} */
    openSocket: (url) => /** @type {any} */ (new WebSocket(url)), // its handlers' types are narrower than what is used
});
