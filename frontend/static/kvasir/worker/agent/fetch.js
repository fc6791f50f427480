/**
 * An agent's downloads: one piece at a time, and the meaning of its failures. `agent.js` starts a fetch. A slice is
 * loaded into the kernel as soon as it is verified, so that serving it only takes new edges. Held slices are neither
 * evicted nor unloaded until they are released.
 */

import {
    CacheFullError,
    DiskFullError,
    DoesNotFitError,
    DownloadError,
    KernelError,
    KernelLostError,
    KernelMemoryError,
    SourceRefusedError,
} from "../../errors.js";
import { offerAt } from "../slices/store.js";
import { Outcome } from "./plan_state.js";

/** @import { ExpertRange, Fetched, Piece } from "./plan_state.js" */
/** @import { HeldSlice, SliceStore, Watched } from "../slices/store.js" */

/**
 * @typedef {{load: (held: HeldSlice) => Promise<void>, unload: (held: HeldSlice) => void}} SliceLoader  throws
 *   KernelError
 */

const NO_ROOM = [DoesNotFitError, CacheFullError, DiskFullError, KernelMemoryError];
const ROUNDS_MOST = 3; // of a piece; each has its own attempts

/** Return a range as text, the key of its slice. @param {ExpertRange} range */
export function rangeKey({ layer, start, stop }) {
    return `${layer}:${start}-${stop}`;
}

/** The slices of one site. */
export class Fetcher {
    /**
     * @param {string} site @param {number} budgetBytes @param {(token: string) => SliceStore} makeStore
     * @param {SliceLoader} loader
     */
    constructor(site, budgetBytes, makeStore, loader) {
        this.loader = loader;
        this.site = site;
        this.budgetBytes = budgetBytes;
        this.makeStore = makeStore;
        /** @type {SliceStore | null} */
        this.store = null;
        /** @type {Map<string, HeldSlice>} */
        this.held = new Map();
        /** @type {Map<string, number>} */
        this.nRounds = new Map();
        this.nDownloadedBefore = 0;
    }

    /** Bytes received over the network. */
    get nDownloaded() {
        return this.nDownloadedBefore + (this.store?.nDownloaded ?? 0);
    }

    /** Use this token from now on. @param {string} token */
    useToken(token) {
        this.nDownloadedBefore = this.nDownloaded;
        this.store = this.makeStore(token);
    }

    /** Return the slices of held pieces. @param {readonly ExpertRange[]} ranges @returns {HeldSlice[]} */
    slices(ranges) {
        return ranges.flatMap((range) => this.held.get(rangeKey(range)) ?? []);
    }

    /** Release all other slices, which may then be evicted. @param {readonly ExpertRange[]} ranges */
    keepOnly(ranges) {
        const kept = new Set(ranges.map(rangeKey));
        for (const [key, held] of this.held) {
            if (kept.has(key)) continue;
            this.loader.unload(held);
            this.store?.release(held);
            this.held.delete(key);
        }
    }

    /**
     * Fetch a piece. `othersBytes` is the part of the budget that other pieces take. Throws no DownloadError; throws
     * the signal's reason if aborted.
     * @param {string} fingerprint @param {Readonly<Piece>} piece @param {number} othersBytes
     * @param {Watched & {onLoad?: () => void}} watched @returns {Promise<Fetched>}
     */
    async fetch(fingerprint, piece, othersBytes, watched) {
        const key = rangeKey(piece.range);
        try {
            if (this.store === null) throw new SourceRefusedError("there is no token yet");
            const offer = offerAt(this.site, fingerprint, [piece.range]);
            const held = await this.store.obtain(offer, this.budgetBytes - othersBytes, watched);
            watched.onLoad?.();
            await this.load(this.store, held, watched.signal);
            this.held.set(key, held);
        } catch (error) {
            watched.signal?.throwIfAborted();
            if (!(error instanceof DownloadError || error instanceof KernelError)) throw error;
            return { piece, outcome: this.meaning(key, error), problem: error.message };
        }
        this.nRounds.delete(key);
        return { piece, outcome: Outcome.FETCHED, problem: "" };
    }

    /** @param {SliceStore} store @param {HeldSlice} held @param {AbortSignal} [signal] */
    async load(store, held, signal) {
        try {
            await this.loader.load(held);
            if (signal?.aborted) this.loader.unload(held);
            signal?.throwIfAborted();
        } catch (error) {
            store.release(held);
            throw error;
        }
    }

    /** @param {string} key @param {DownloadError | KernelError} error */
    meaning(key, error) {
        if (NO_ROOM.some((kind) => error instanceof kind)) return Outcome.NO_ROOM;
        if (error instanceof KernelError && !(error instanceof KernelLostError)) return Outcome.HOPELESS;
        const nRounds = (this.nRounds.get(key) ?? 0) + 1;
        if (error instanceof SourceRefusedError || nRounds >= ROUNDS_MOST) {
            this.nRounds.delete(key);
            return Outcome.HOPELESS;
        }
        this.nRounds.set(key, nRounds);
        return Outcome.AGAIN;
    }
}
