/**
 * Verifies all expert bytes of a fetched slice, and fetches only the broken ones again. `slices/store.js` calls it
 * before a slice is used. Experts are hashed one after another, so that memory stays at a few MB.
 */

import { BrokenSliceError, DownloadError, TransferError } from "../../errors.js";
import { isSameRange } from "../../slicing/expert_ranges.js";
import { readSlice } from "../../slicing/slice_file.js";
import { sha256 } from "./paths.js";

/** @import { ExpertRange } from "../agent/plan_state.js" */
/** @import { Patience } from "./download.js" */
/** @import { BytePlace, SliceFacts } from "../../slicing/slice_file.js" */
/** @import { RangeSource } from "./http.js" */
/** @import { SliceManifest } from "./manifest.js" */
/** @import { DataFile } from "./paths.js" */

const ROUNDS = 3; // of verifying and fetching again, until the slice fails

/** One complete slice. */
export class SliceRepair {
    /**
     * @param {RangeSource} site @param {string} url @param {SliceManifest} layout @param {DataFile} file
     * @param {readonly ExpertRange[]} ranges @param {Patience} patience
     */
    constructor(site, url, layout, file, ranges, patience) {
        this.site = site;
        this.url = url;
        this.layout = layout;
        this.file = file;
        this.ranges = ranges;
        this.patience = patience;
    }

    /**
     * Verify, fetch broken bytes again, and verify those. Throws BrokenSliceError if the site's bytes do not match its
     * manifest, or DownloadError if they cannot be fetched.
     * @param {AbortSignal} [signal]
     * @returns {Promise<{facts: SliceFacts, nRepaired: number}>} bytes that were fetched again
     */
    async run(signal) {
        let nRepaired = 0;
        for (let round = 0; ; round++) {
            const { facts, broken } = await this.look(signal);
            if (facts !== null && broken.length === 0) return { facts, nRepaired };
            const nBytes = broken.reduce((sum, place) => sum + place.nBytes, 0);
            if (round === ROUNDS) {
                throw new BrokenSliceError(
                    `${this.file.name}: ${nBytes} bytes, at ${broken[0].offset} first, are not what the manifest says, ` +
                        `though they were fetched ${ROUNDS} times; the site's file or its manifest is wrong`,
                );
            }
            for (const place of broken) await this.mend(place, signal);
            nRepaired += nBytes;
        }
    }

    /**
     * Return the places that must be fetched again.
     * @param {AbortSignal} [signal]
     * @returns {Promise<{facts: SliceFacts | null, broken: BytePlace[]}>}
     */
    async look(signal) {
        const { file, layout } = this;
        const header = file.read({ offset: 0, nBytes: layout.headerBytes });
        if ((await sha256([header])) !== layout.headerSha256) {
            // without it the places of experts are not known
            return { facts: null, broken: [{ offset: 0, nBytes: layout.headerBytes }] };
        }
        const facts = readSlice(header, layout.nBytes);
        if (facts.modelFingerprint !== layout.modelFingerprint || !isSame(facts.ranges, this.ranges)) {
            throw new BrokenSliceError(`${file.name}: it is not the requested slice`);
        }
        /** @type {BytePlace[]} */
        const broken = [];
        for (const place of facts.experts) {
            signal?.throwIfAborted();
            const wanted = layout.experts.get(`${place.layer}/${place.expert}`);
            const found = await sha256(place.digested.map((part) => file.read(part)));
            if (wanted?.sha256 !== found) broken.push(...place.digested);
        }
        return { facts, broken };
    }

    /** Replace bytes by fetching them again. @param {BytePlace} place @param {AbortSignal} [signal] */
    async mend({ offset, nBytes }, signal) {
        const { etag, nBytes: total } = this.layout;
        const stop = offset + nBytes;
        let [position, nFailed] = [offset, 0];
        while (position < stop) {
            const before = position;
            try {
                const wanted = { url: this.url, start: position, stop, total, etag };
                for await (const chunk of this.site.readRange(wanted, signal)) {
                    this.file.writeAt(position, chunk);
                    position += chunk.length;
                }
            } catch (error) {
                if (!(error instanceof TransferError)) throw error;
                nFailed = position > before ? 1 : nFailed + 1;
                if (nFailed >= this.patience.attempts) {
                    const words = `${nFailed} attempts in a row brought nothing: ${error.message}`;
                    throw new DownloadError(words, { cause: error });
                }
                await this.patience.wait(nFailed, error.retryAfterS, signal);
            }
        }
    }
}

/** @param {readonly ExpertRange[]} left @param {readonly ExpertRange[]} right */
function isSame(left, right) {
    return left.length === right.length && left.every((range, i) => isSameRange(range, right[i]));
}
