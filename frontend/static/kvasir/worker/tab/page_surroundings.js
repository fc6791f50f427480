/**
 * What only a page can see and do: power, metered connection, visibility, returning from a freeze, and the wake lock.
 * `tab/client.js` passes the facts on to the worker. Facts that a browser does not report are `null`.
 */

/** @typedef {import("./messages.js").Surroundings} Surroundings */

/**
 * @typedef {object} BatteryManager The part of the Battery Status API that is used.
 * @property {boolean} charging
 * @property {(type: string, listener: () => void) => void} addEventListener
 * @property {(type: string, listener: () => void) => void} removeEventListener
 */

/**
 * @typedef {object} NetworkInformation The part of the Network Information API that is used.
 * @property {string} [type]
 * @property {boolean} [saveData]
 * @property {(type: string, listener: () => void) => void} [addEventListener]
 * @property {(type: string, listener: () => void) => void} [removeEventListener]
 */

/**
 * @typedef {Navigator & {connection?: NetworkInformation, getBattery?: () => Promise<BatteryManager>}} RichNavigator
 */

/**
 * Return whether the connection is metered; null if the browser does not report it.
 * @param {NetworkInformation | undefined} connection
 * @returns {boolean | null}
 */
export function isMetered(connection) {
    if (connection === undefined) return null;
    if (connection.saveData) return true;
    return connection.type === undefined ? null : connection.type === "cellular";
}

/**
 * Report the surroundings now and after every change.
 * @param {{onChange: (surroundings: Surroundings) => void, onWake: () => void}} told
 * @returns {() => void} ends it
 */
export function watchSurroundings({ onChange, onWake }) {
    const { connection, getBattery } = /** @type {RichNavigator} */ (navigator);
    /** @type {BatteryManager | null} */
    let battery = null;
    const tell = () =>
        onChange({
            isOnPower: battery === null ? null : battery.charging,
            isMetered: isMetered(connection),
            isVisible: document.visibilityState === "visible",
        });
    const woke = () => {
        onWake();
        tell();
    };
    const seen = () => (document.visibilityState === "visible" ? woke() : tell());
    /** @type {[EventTarget | NetworkInformation, string, () => void][]} */
    const heard = [
        [document, "visibilitychange", seen],
        [document, "resume", woke],
        [window, "pageshow", woke],
        [window, "online", woke],
    ];
    if (connection?.addEventListener) heard.push([connection, "change", tell]);
    for (const [target, type, listener] of heard) target.addEventListener?.(type, listener);
    tell();
    getBattery?.call(navigator).then(
        (found) => {
            battery = found;
            found.addEventListener("chargingchange", tell);
            tell();
        },
        () => undefined, // the browser may refuse
    );
    return () => {
        for (const [target, type, listener] of heard) target.removeEventListener?.(type, listener);
        battery?.removeEventListener("chargingchange", tell);
    };
}

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
            held = null; // the system refuses, for example on low battery; work continues without it
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
