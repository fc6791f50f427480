/**
 * Keeps the screen on while the tab contributes, where the browser can and the visitor wants it.
 * `tab/client.js` tells when. Browsers let go of the lock whenever the page is hidden, so it is asked for again.
 */

/**
 * @returns {{setWanted: (isWanted: boolean) => void, setActive: (isActive: boolean) => void}}
 */
export function keepAwake() {
    let [isWanted, isActive, isAsking] = [false, false, false];
    /** @type {WakeLockSentinel | null} */
    let held = null;

    const shouldHold = () => isWanted && isActive && document.visibilityState === "visible";

    async function settle() {
        if (isAsking || !("wakeLock" in navigator)) return;
        if (!shouldHold()) {
            await held?.release();
            held = null;
            return;
        }
        if (held !== null && !held.released) return;
        isAsking = true;
        try {
            held = await navigator.wakeLock.request("screen");
        } catch {
            held = null; // the system refuses, as on low battery; the work goes on without it
        } finally {
            isAsking = false;
        }
        if (!shouldHold()) await settle();
    }

    document.addEventListener("visibilitychange", settle);
    return {
        setWanted(value) {
            isWanted = value;
            void settle();
        },
        setActive(value) {
            isActive = value;
            void settle();
        },
    };
}
