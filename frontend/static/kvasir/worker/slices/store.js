/**
 * A tab's slices: fetched, verified, kept and evicted. Twin of kvasir/worker/slices/store.py; the rules are in
 * docs/reference/slices.md. `agent/fetch.js` asks for one at a time. `obtain` gives one whose experts have the SHA-256
 * of the site's manifest, however often the way there was cut; what has come is kept over reloads.
 */

import { BrokenSliceError, DoesNotFitError, DownloadError, SliceChangedError, TransferError } from "./errors.js";
import { memoryNeeded } from "./budget.js";
import { Patience, SliceDownload } from "./download.js";
import { MANIFEST_MOST_BYTES, expertBytes, parseManifest } from "./manifest.js";
import { sliceNames } from "./paths.js";
import { SliceRepair } from "./repair.js";

/** @import { ExpertRange } from "../agent/plan_state.js" */
/** @import { SliceCache } from "./cache.js" */
/** @import { Progress } from "./download.js" */
/** @import { SliceFacts } from "../../slicing/slice_file.js" */
/** @import { RangeSource } from "./http.js" */
/** @import { SliceManifest } from "./manifest.js" */
/** @import { DataFile, SliceNames } from "./paths.js" */

/**
 * @typedef {{fingerprint: string, ranges: readonly ExpertRange[], sliceUrl: string, manifestUrl: string}} SliceOffer 
 *   merged ranges, absolute addresses
 */
/**
 * @typedef {{name: string, fingerprint: string, facts: SliceFacts, nBytes: number, nRepaired: number}} HeldSlice 
 *   verified and in use: not evicted until `release`
 */

/**
 * @typedef {object} Watched  Who hears how it goes.
 * @property {Progress} [progress]
 * @property {() => void} [onVerify]  all bytes are there and are hashed now
 * @property {AbortSignal} [signal]
 */

const MANIFEST_READ_S = 300; // the first manifest of an expert is hashed while the worker waits
const STARTS = 3; // of one slice from its first byte, when the site keeps changing it

/**
 * These experts (merged ranges) at the routes that every site has.
 * @param {string} siteUrl @param {string} fingerprint @param {readonly ExpertRange[]} ranges @returns {SliceOffer}
 */
export function offerAt(siteUrl, fingerprint, ranges) {
    const experts = ranges.map((item) => `${item.layer}:${item.start}-${item.stop}`).join();
    const [base, tail] = [siteUrl.replace(/\/+$/, ""), `${fingerprint}?experts=${experts}`];
    const [sliceUrl, manifestUrl] = [`${base}/api/slices/${tail}`, `${base}/api/manifests/${tail}`];
    return { fingerprint, ranges, sliceUrl, manifestUrl };
}

export class SliceStore {
    /** @param {SliceCache} cache @param {RangeSource} site @param {Patience} [patience] */
    constructor(cache, site, patience = new Patience()) {
        this.cache = cache;
        this.site = site;
        this.patience = patience;
        this.nDownloaded = 0; // bytes of slices that came over the network
    }

    /**
     * These experts, verified, from the disk or from the site. May be cut by its signal and called again. Throws
     * DoesNotFitError when `memoryBytes` are too few for them, CacheFullError, DiskFullError, or another DownloadError.
     * @param {SliceOffer} offer @param {number} memoryBytes @param {Watched} [watched] @returns {Promise<HeldSlice>}
     */
    async obtain(offer, memoryBytes, watched = {}) {
        const names = await sliceNames(offer.fingerprint, offer.ranges);
        if (this.cache.inUse.has(names.data)) throw new TransferError(`${names.data} is in use already`, 5);
        this.cache.inUse.add(names.data);
        try {
            return await this.obtainNamed(names, offer, memoryBytes, watched);
        } catch (error) {
            this.cache.inUse.delete(names.data);
            throw error;
        }
    }

    /** It is not used any more, and may be evicted. @param {HeldSlice} held */
    release(held) {
        this.cache.inUse.delete(held.name);
    }

    /**
     * @param {SliceNames} names
     * @param {SliceOffer} offer
     * @param {number} memoryBytes
     * @param {Watched} watched
     * @returns {Promise<HeldSlice>}
     */
    async obtainNamed(names, offer, memoryBytes, watched) {
        let saved = await this.savedLayout(names, offer);
        for (let start = 0; start < STARTS; start++) {
            const layout = saved ?? (await this.fetchedLayout(names, offer, watched.signal));
            checkMemory(offer, layout, memoryBytes);
            try {
                return await this.fill(names, offer, layout, watched);
            } catch (error) {
                if (!(error instanceof SliceChangedError)) throw error;
                console.warn(`the slice is fetched from its first byte: ${error.message}`);
                saved = null;
                await this.cache.folder.remove(names.state);
            }
        }
        throw new DownloadError(`${offer.sliceUrl}: the site changed this slice ${STARTS} times while it was fetched`);
    }

    /**
     * Make the file whole and right.
     * @param {SliceNames} names
     * @param {SliceOffer} offer
     * @param {SliceManifest} layout
     * @param {Watched} watched
     * @returns {Promise<HeldSlice>}
     */
    async fill(names, offer, layout, watched) {
        const isBegun = (await this.begunEtag(names)) === layout.etag;
        await this.cache.makeRoom(names, layout.nBytes);
        const file = await this.cache.folder.openData(names.data);
        try {
            if (!isBegun) {
                file.truncate(0);
                await this.cache.folder.write(names.state, encoded({ etag: layout.etag }));
            } else if (file.nBytes > layout.nBytes) {
                file.truncate(layout.nBytes);
            }
            await this.download(offer, layout, file, watched);
            watched.onVerify?.();
            const repair = new SliceRepair(this.site, offer.sliceUrl, layout, file, offer.ranges, this.patience);
            const { facts, nRepaired } = await repair.run(watched.signal);
            file.flush();
            this.nDownloaded += nRepaired;
            return { name: names.data, fingerprint: offer.fingerprint, facts, nBytes: layout.nBytes, nRepaired };
        } catch (error) {
            // it may be the manifest that is wrong: ask anew next time
            if (error instanceof BrokenSliceError) await this.cache.folder.remove(names.manifest);
            throw error;
        } finally {
            file.close();
        }
    }

    /** @param {SliceOffer} offer @param {SliceManifest} layout @param {DataFile} file @param {Watched} watched */
    async download(offer, layout, file, { progress = () => undefined, signal }) {
        const before = file.nBytes;
        try {
            await new SliceDownload(this.site, offer.sliceUrl, layout, file, this.patience).run(progress, signal);
        } finally {
            this.nDownloaded += file.nBytes - before;
        }
    }

    /**
     * What the site says now; kept beside the slice.
     * @param {SliceNames} names
     * @param {SliceOffer} offer
     * @param {AbortSignal} [signal]
     */
    async fetchedLayout(names, offer, signal) {
        for (let nFailed = 1; ; nFailed++) {
            try {
                const body = await this.site.readAll(offer.manifestUrl, MANIFEST_MOST_BYTES, MANIFEST_READ_S, signal);
                const layout = parseManifest(body, offer.fingerprint, offer.ranges);
                await this.cache.folder.write(names.manifest, body);
                return layout;
            } catch (error) {
                if (!(error instanceof TransferError) || nFailed >= this.patience.attempts) throw error;
                await this.patience.wait(nFailed, error.retryAfterS, signal);
            }
        }
    }

    /**
     * What was kept, if all bytes that belong to it are there: then the site need not be asked.
     * @param {SliceNames} names
     * @param {SliceOffer} offer
     * @returns {Promise<SliceManifest | null>}
     */
    async savedLayout(names, offer) {
        const body = await this.cache.folder.read(names.manifest);
        if (body === null) return null;
        try {
            const layout = parseManifest(body, offer.fingerprint, offer.ranges);
            const isWhole = (await this.cache.folder.size(names.data)) === layout.nBytes;
            return isWhole && (await this.begunEtag(names)) === layout.etag ? layout : null;
        } catch {
            return null;
        }
    }

    /**
     * The entity tag that the bytes on the disk belong to, or "".
     * @param {SliceNames} names
     * @returns {Promise<string>}
     */
    async begunEtag(names) {
        const body = await this.cache.folder.read(names.state);
        if (body === null) return "";
        try {
            const { etag } = JSON.parse(new TextDecoder().decode(body));
            return typeof etag === "string" ? etag : "";
        } catch {
            return "";
        }
    }
}

/** @param {SliceOffer} offer @param {SliceManifest} layout @param {number} memoryBytes */
function checkMemory(offer, layout, memoryBytes) {
    const needed = memoryNeeded(offer.ranges, (layer) => expertBytes(layout, layer));
    if (needed > memoryBytes) {
        throw new DoesNotFitError(`these experts need ${needed} bytes of memory, the worker may take ${memoryBytes}`);
    }
}

/** @param {unknown} content */
function encoded(content) {
    return new TextEncoder().encode(JSON.stringify(content));
}
