/**
 * The slices on the disk, within a budget of bytes; the least recently used are evicted first. `slices/store.js` owns
 * one. Only one worker in a browser uses it (`single_worker.js`), so it needs no lock files.
 */

import { CacheFullError } from "../../errors.js";
import { namesOf } from "./paths.js";

/** @import { SliceFolder, SliceNames } from "./paths.js" */

/** @typedef {{names: SliceNames, nBytes: number, usedMs: number}} CacheEntry */

export class SliceCache {
    /** @param {SliceFolder} folder @param {number} budgetBytes */
    constructor(folder, budgetBytes) {
        this.folder = folder;
        this.budgetBytes = budgetBytes;
        /** @type {Set<string>} data files that must not be evicted */
        this.inUse = new Set();
    }

    /** List the slices, least recently used first. @returns {Promise<CacheEntry[]>} */
    async entries() {
        /** @type {Map<string, CacheEntry>} */
        const found = new Map();
        for (const { name, nBytes, modifiedMs } of await this.folder.entries()) {
            const stem = name.split(".")[0];
            const entry = found.get(stem) ?? { names: namesOf(stem), nBytes: 0, usedMs: 0 };
            entry.nBytes += nBytes;
            entry.usedMs = Math.max(entry.usedMs, modifiedMs);
            found.set(stem, entry);
        }
        return [...found.values()].sort((left, right) => left.usedMs - right.usedMs);
    }

    /** Return the bytes of all files. */
    async usedBytes() {
        return (await this.entries()).reduce((sum, entry) => sum + entry.nBytes, 0);
    }

    /**
     * Evict until a slice of `nBytes` fits, counting the bytes of it that are already there. Throws CacheFullError,
     * before anything is evicted, if the slices in use leave no room for it.
     * @param {SliceNames} names @param {number} nBytes
     */
    async makeRoom(names, nBytes) {
        const others = (await this.entries()).filter((entry) => entry.names.data !== names.data);
        const total = (/** @type {CacheEntry[]} */ entries) => entries.reduce((sum, entry) => sum + entry.nBytes, 0);
        const held = total(others.filter((entry) => this.inUse.has(entry.names.data)));
        if (held + nBytes > this.budgetBytes) {
            throw new CacheFullError(
                `the slice needs ${nBytes} bytes, the cache may hold ${this.budgetBytes}, of which ${held} are in use`,
            );
        }
        let left = total(others);
        for (const entry of others) {
            if (left + nBytes <= this.budgetBytes) return;
            if (this.inUse.has(entry.names.data)) continue;
            await this.remove(entry.names);
            left -= entry.nBytes;
        }
    }

    /** Delete a slice's files. @param {SliceNames} names */
    async remove({ data, state, manifest }) {
        for (const name of [state, data, manifest]) await this.folder.remove(name);
    }

    /** Delete everything that is not in use. */
    async clear() {
        for (const entry of await this.entries()) {
            if (!this.inUse.has(entry.names.data)) await this.remove(entry.names);
        }
    }
}
