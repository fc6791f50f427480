/**
 * One worker for each browser: a Web Lock, which the browser releases when a tab closes or crashes. `tab_worker.js`
 * takes it before it starts. A second tab shows that another one is working, and waits for it to end.
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

    /** Take the lock. Return whether this tab has it now. @returns {Promise<boolean>} */
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

    /** Release the lock. It may be called again. */
    release() {
        this.letGo?.();
        this.letGo = null;
    }

    /** Return whether another tab has it. */
    async isElsewhere() {
        const { held = [] } = await navigator.locks.query();
        return !this.isHeld && held.some((lock) => lock.name === LOCK);
    }

    /** Wait until no tab has it. @param {AbortSignal} signal ends the wait with its reason */
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
