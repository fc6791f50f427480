/**
 * What only a page can see of its surroundings: power, metered connection, visibility, and coming back from a freeze.
 * `tab/client.js` passes it on to the worker. Browsers that do not say get `null`, and nothing is guessed.
 */

/** @typedef {import("./messages.js").Surroundings} Surroundings */

/**
 * @typedef {object} BatteryManager  What is used of the Battery Status API.
 * @property {boolean} charging
 * @property {(type: string, listener: () => void) => void} addEventListener
 * @property {(type: string, listener: () => void) => void} removeEventListener
 */

/**
 * @typedef {object} NetworkInformation  What is used of the Network Information API.
 * @property {string} [type]
 * @property {boolean} [saveData]
 * @property {(type: string, listener: () => void) => void} [addEventListener]
 * @property {(type: string, listener: () => void) => void} [removeEventListener]
 */

/**
 * @typedef {Navigator & {connection?: NetworkInformation, getBattery?: () => Promise<BatteryManager>}} RichNavigator
 */

/**
 * Whether the connection costs by the byte; null when the browser does not say.
 * @param {NetworkInformation | undefined} connection
 * @returns {boolean | null}
 */
export function isMetered(connection) {
    if (connection === undefined) return null;
    if (connection.saveData) return true;
    return connection.type === undefined ? null : connection.type === "cellular";
}

/**
 * Tell of the surroundings now and whenever they change.
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
        () => undefined, // a browser that has it may still refuse
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
