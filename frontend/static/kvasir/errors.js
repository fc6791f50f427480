/**
 * The errors that Kvasir throws on purpose. Callers catch one branch where they can do something else.
 */

/** Root of the tree. */
export class KvasirError extends Error {
    /** @param {string} message @param {ErrorOptions} [options] */
    constructor(message, options) {
        super(message, options);
        this.name = new.target.name;
    }
}

/** A kernel refuses its input, or a build is faulty. */
export class KernelError extends KvasirError {}

/** There is no room for an expert. What was loaded before is still there. */
export class KernelMemoryError extends KernelError {
    /**
     * @param {number} needed bytes that were asked for
     * @param {number} available bytes that are left
     */
    constructor(needed, available) {
        super(`no memory for ${needed} bytes of weights: ${available} bytes are left`);
        this.needed = needed;
        this.available = available;
    }
}

/** The device or thread that held the weights is gone, and with it all that was loaded. */
export class KernelLostError extends KernelError {}

/** This device has no GPU that is worth using; the message says why. WebAssembly may still work. */
export class GpuUnavailableError extends KernelError {}

/** This browser has neither WebGPU nor WebAssembly SIMD. The message says which browsers have them. */
export class UnsupportedBrowserError extends KernelError {}

/** Bytes or fields that are not a frame of this protocol, or are over its limits. */
export class WireError extends KvasirError {}

/** A frame of another wire version. */
export class WireVersionError extends WireError {}

/** An edge or a socket could not be opened, was closed or was lost. */
export class EdgeError extends KvasirError {}

/** The other side did not answer before the deadline. */
export class EdgeTimeout extends EdgeError {}

/** The other side refused the hello. `code` is a RefuseCode. */
export class HandshakeRefused extends EdgeError {
    /**
     * @param {number} code
     * @param {string} message
     */
    constructor(code, message) {
        super(message);
        this.code = code;
    }
}

/** A slice could not be fetched; the message says why. */
export class DownloadError extends KvasirError {}

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

/** The server refuses to send these bytes; asking again is useless. */
export class SourceRefusedError extends DownloadError {}

/** The server has other bytes at this address than when the download began. */
export class SliceChangedError extends DownloadError {}

/** The bytes of a slice are wrong, and stay wrong when fetched again. */
export class BrokenSliceError extends DownloadError {}

/** The worker's memory has no room for these experts; nothing was downloaded. */
export class DoesNotFitError extends DownloadError {}

/** The cache's budget has no room for a slice beside those in use. */
export class CacheFullError extends DownloadError {}

/** The browser's quota or the disk has no room for the rest of a slice. What has arrived is kept. */
export class DiskFullError extends DownloadError {}

/** The browser gives no storage, or its storage failed. */
export class StorageError extends DownloadError {}

/** The site did not answer, or not now; the same request may succeed later. `code` is the site's own, or "". */
export class MarketAwayError extends KvasirError {
    /**
     * @param {string} message
     * @param {number} [retryAfterS] seconds that the site asked for; 0: it named none
     * @param {string} [code]
     */
    constructor(message, retryAfterS = 0, code = "") {
        super(message);
        this.retryAfterS = retryAfterS;
        this.code = code;
    }
}

/** The site refused, and would refuse again. */
export class MarketRefusedError extends KvasirError {
    /** @param {number} status @param {string} code @param {string} message */
    constructor(status, code, message) {
        super(message);
        this.status = status;
        this.code = code;
    }
}

/** The agent has stopped for good. `code` is one of `Problem` in messages.js; the message has the values. */
export class AgentEndedError extends KvasirError {
    /** @param {string} code @param {string} detail @param {ErrorOptions} [options] */
    constructor(code, detail, options) {
        super(detail, options);
        this.code = code;
    }
}

const INVITE_CODES = ["invite_needed", "invite_unknown", "invite_expired", "invite_used"];

/**
 * Return the error with which an agent ends after this refusal of the site.
 * @param {MarketRefusedError} refused
 * @returns {AgentEndedError}
 */
export function endedByRefusal({ status, code, message }) {
    if (INVITE_CODES.includes(code)) return new AgentEndedError("invite_needed", message);
    if (code === "registration_closed") return new AgentEndedError(code, message);
    return new AgentEndedError(status === 401 ? "token_refused" : "refused", message);
}

/**
 * Return the message of anything that was thrown.
 * @param {unknown} error
 * @returns {string}
 */
export function messageOf(error) {
    return error instanceof Error ? error.message : String(error);
}
