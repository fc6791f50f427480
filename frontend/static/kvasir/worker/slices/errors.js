/**
 * What can go wrong with a slice, by what it means: later again, never, no room, other bytes.
 * Twin of the error classes in kvasir/worker/slice_*.py; `agent/fetch.js` turns them into outcomes.
 */

/** Getting a slice failed; the message says why. */
export class DownloadError extends Error {
    /** @param {string} message @param {ErrorOptions} [options] */
    constructor(message, options) {
        super(message, options);
        this.name = new.target.name;
    }
}

/** The connection failed, was cut or was too slow; the same request may succeed later. */
export class TransferError extends DownloadError {
    /**
     * @param {string} message
     * @param {number} [retryAfterS] seconds that the server asked for
     * @param {ErrorOptions} [options]
     */
    constructor(message, retryAfterS = 0, options = undefined) {
        super(message, options);
        this.retryAfterS = retryAfterS;
    }
}

/** The server will not give these bytes, however often it is asked. */
export class SourceRefusedError extends DownloadError {}

/** The server has other bytes under this address than those that were begun with. */
export class SliceChangedError extends DownloadError {}

/** Bytes stay wrong however often they are fetched. */
export class BrokenSliceError extends DownloadError {}

/** The worker's memory has no room for these experts; nothing was downloaded. */
export class DoesNotFitError extends DownloadError {}

/** The cache's budget has no room for a slice beside those that are in use. */
export class CacheFullError extends DownloadError {}

/** The browser's quota or the disk has no room for the rest of a slice; what has come is kept. */
export class DiskFullError extends DownloadError {}

/** The browser gives no storage, or it broke. */
export class StorageError extends DownloadError {}
