/**
 * The errors of the wire, the relay and their edges. Twin of the wire's part of kvasir/errors.py.
 * Whatever the other side sends ends as one of these; nothing else is thrown for it.
 */

/** Bytes or fields that are not a frame of this protocol, or over its limits. */
export class WireError extends Error {
    /** @param {string} message */
    constructor(message) {
        super(message);
        this.name = new.target.name;
    }
}

/** A frame of another wire version. */
export class WireVersionError extends WireError {}

/** An edge or a socket that is lost, closed or cannot be had. */
export class EdgeError extends Error {
    /** @param {string} message */
    constructor(message) {
        super(message);
        this.name = new.target.name;
    }
}

/** The other side did not answer in time. */
export class EdgeTimeout extends EdgeError {}

/** The other side answered the hello with no. `code` is a RefuseCode. */
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

/**
 * The message of whatever was thrown.
 * @param {unknown} error
 * @returns {string}
 */
export function messageOf(error) {
    return error instanceof Error ? error.message : String(error);
}
