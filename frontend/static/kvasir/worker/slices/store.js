/**
 * A tab's slices: fetched, verified, kept and evicted by the rules of docs/reference/slices.md. `agent/fetch.js` requests one at
 * a time. `obtain` returns a slice in which every expert has the SHA-256 of the site's manifest. Partial downloads
 * survive reloads and are resumed.
 */

import { BrokenSliceError, DoesNotFitError, DownloadError, SliceChangedError, TransferError } from "../../errors.js";
import { memoryNeeded } from "./budget.js";
import { Patience, SliceDownload } from "./download.js";
import { expertBytes, MANIFEST_MOST_BYTES, parseManifest } from "./manifest.js";
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
 * @typedef {object} Watched Receiver of progress.
 * @property {Progress} [progress]
 * @property {() => void} [onVerify] all bytes are there; hashing starts
 * @property {AbortSignal} [signal]
 */

const MANIFEST_READ_S = 300; // the site may hash an expert for its first manifest while the worker waits
const STARTS = 3; // of one slice from its first byte, if the site keeps changing it

/**
 * Return the offer of these experts (merged ranges), at the routes that every site has.
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
        this.nDownloaded = 0; // bytes of slices received over the network
    }

    /**
     * Return these experts, verified, from the disk or from the site. It may be aborted and called again. Throws
     * DoesNotFitError if `memoryBytes` are too few, CacheFullError, DiskFullError, or another DownloadError.
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

    /** Release a slice, which may then be evicted. @param {HeldSlice} held */
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
     * Complete the file and verify it.
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
            // the manifest may be wrong: request it again next time
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
     * Return the site's current manifest, and keep it beside the slice.
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
     * Return the kept manifest if all bytes of the slice are there: then the site is not asked.
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
     * Return the entity tag of the bytes on the disk, or "".
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
        throw new DoesNotFitError(`these experts need ${needed} bytes of memory, the worker has ${memoryBytes}`);
    }
}

/** @param {unknown} content */
function encoded(content) {
    return new TextEncoder().encode(JSON.stringify(content));
}
