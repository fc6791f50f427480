// The screen's wake lock: held while the tab works, is visible and the visitor wants it; asked for again when it comes back.

import assert from "node:assert/strict";
import test from "node:test";

import { keepAwake } from "/static/kvasir/worker/tab/page_surroundings.js";

/** A page whose visibility and wake lock a test commands. */
function screen({ refuses = false } = {}) {
    const page = Object.assign(new EventTarget(), { visibilityState: "visible" });
    const locks = [];
    const request = async (kind) => {
        if (refuses) throw new DOMException("low battery", "NotAllowedError");
        const lock = { kind, released: false, release: async () => (lock.released = true) };
        locks.push(lock);
        return lock;
    };
    globalThis.document = page;
    Object.defineProperty(globalThis.navigator, "wakeLock", { value: { request }, configurable: true });
    const show = async (state) => {
        page.visibilityState = state;
        if (state === "hidden") for (const lock of locks) lock.released = true; // as browsers do
        page.dispatchEvent(new Event("visibilitychange"));
        await settle();
    };
    return { show, locks, held: () => locks.filter((lock) => !lock.released).length };
}

const settle = () => new Promise((resolve) => setImmediate(resolve));

test("it is held only while the tab works and the visitor wants it", async () => {
    const { held, locks } = screen();
    const lock = keepAwake();
    lock.setWanted(true);
    await settle();
    assert.equal(locks.length, 0);
    lock.setActive(true);
    await settle();
    assert.deepEqual([locks.length, held(), locks[0].kind], [1, 1, "screen"]);
    lock.setActive(true); // states come again and again
    await settle();
    assert.equal(locks.length, 1);
    lock.setActive(false);
    await settle();
    assert.equal(held(), 0);
});

test("a tab that was hidden asks for it again", async () => {
    const { show, held, locks } = screen();
    const lock = keepAwake();
    lock.setWanted(true);
    lock.setActive(true);
    await settle();
    await show("hidden");
    assert.deepEqual([locks.length, held()], [1, 0]);
    await show("visible");
    assert.deepEqual([locks.length, held()], [2, 1]);
});

test("who changes their mind while the browser is asked holds nothing afterwards", async () => {
    const { held, locks } = screen();
    const lock = keepAwake();
    lock.setWanted(true);
    lock.setActive(true);
    lock.setWanted(false);
    await settle();
    assert.deepEqual([locks.length, held()], [1, 0]);
});

test("a browser that refuses, or has none, stops nothing", async () => {
    const { locks } = screen({ refuses: true });
    const lock = keepAwake();
    lock.setWanted(true);
    lock.setActive(true);
    await settle();
    assert.equal(locks.length, 0);
    delete globalThis.navigator.wakeLock;
    lock.setActive(false);
    lock.setActive(true);
    await settle();
});
