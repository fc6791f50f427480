/**
 * Something has changed: wakes the one who waits, and is remembered while nobody does.
 * `agent.js` waits for it between two decisions.
 */

export class News {
    constructor() {
        this.isThere = false;
        /** @type {() => void} */
        this.wake = () => undefined;
    }

    tell() {
        this.isThere = true;
        this.wake();
    }

    /** Until something is told, or so many seconds have gone. @param {number} seconds */
    async wait(seconds) {
        if (!this.isThere) {
            /** @type {ReturnType<typeof setTimeout> | undefined} */
            let timer;
            await /** @type {Promise<void>} */ (
                new Promise((resolve) => {
                    this.wake = resolve;
                    timer = setTimeout(resolve, 1000 * seconds);
                })
            );
            clearTimeout(timer);
            this.wake = () => undefined;
        }
        this.isThere = false;
    }
}
