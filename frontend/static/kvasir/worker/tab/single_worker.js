/**
 * One worker a browser: a Web Lock that the browser itself lets go of when a tab closes or crashes.
 * `tab_worker.js` takes it before it starts. A second tab is told so, and hears when the first one is gone.
 */

const LOCK = "kvasir-worker";

export class SingleWorker {
    constructor() {
        /** @type {(() => void) | null} */
        this.letGo = null;
    }

    get isHeld() {
        return this.letGo !== null;
    }

    /** Whether it could be had; having it already counts. @returns {Promise<boolean>} */
    async take() {
        if (this.isHeld) return true;
        return new Promise((resolve, reject) => {
            const had = navigator.locks.request(LOCK, { ifAvailable: true }, (lock) => {
                resolve(lock !== null);
                return lock === null ? undefined : this.hold();
            });
            had.catch(reject);
        });
    }

    /** Let others have it. May be called again. */
    release() {
        this.letGo?.();
        this.letGo = null;
    }

    /** Whether another tab has it now. */
    async isElsewhere() {
        const { held = [] } = await navigator.locks.query();
        return !this.isHeld && held.some((lock) => lock.name === LOCK);
    }

    /** Until nobody has it. @param {AbortSignal} signal ends the wait with its reason */
    async untilFree(signal) {
        await navigator.locks.request(LOCK, { signal }, () => undefined);
    }

    /** @returns {Promise<void>} */
    hold() {
        return new Promise((resolve) => {
            this.letGo = resolve;
        });
    }
}
