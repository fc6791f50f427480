/**
 * HTTP downloads of byte ranges, with a deadline on every read. `slices/download.js` and `slices/repair.js` use it. It
 * throws TransferError if the request may succeed later, SourceRefusedError if it will not. It follows no redirects:
 * the page's policy allows only its own site.
 */

import { SliceChangedError, SourceRefusedError, TransferError } from "../../errors.js";

const READ_S = 30; // without a byte
const SLOWEST_BYTES_PER_S = 1024; // over a window; a slower connection counts as cut
const WINDOW_S = 30;
const RETRY_AFTER_MOST_S = 60;
const ERROR_BYTES = 2048; // of an error's body that are read for its message

/**
 * @typedef {{url: string, start: number, stop: number, total: number, etag: string}} RangeRequest  bytes `start` up to
 *   `stop` of a file of `total` bytes; `etag` may be ""
 */

/** One server, with the token to send. */
export class RangeSource {
    /**
     * @param {string} token  "" for none
     * @param {{fetch?: typeof globalThis.fetch, now?: () => number}} [means]  for tests; `now` in milliseconds
     */
    constructor(token, { fetch = globalThis.fetch.bind(globalThis), now = () => performance.now() } = {}) {
        /** @type {Record<string, string>} */
        this.headers = token ? { authorization: `Bearer ${token}` } : {};
        this.fetch = fetch;
        this.now = now;
    }

    /**
     * Fetch a whole small document.
     * @param {string} url
     * @param {number} nBytesMost
     * @param {number} readS how long the server may take to answer
     * @param {AbortSignal} [signal] @returns {Promise<Uint8Array>}
     */
    async readAll(url, nBytesMost, readS, signal) {
        const exchange = new Exchange(url, readS, signal);
        try {
            const response = await exchange.open(this.fetch, this.headers);
            await raiseForStatus(exchange, response, [200]);
            /** @type {Uint8Array[]} */
            const chunks = [];
            let nBytes = 0;
            for await (const chunk of exchange.chunks(response, this.now)) {
                nBytes += chunk.length;
                if (nBytes > nBytesMost) throw new SourceRefusedError(`${url}: more than ${nBytesMost} bytes came`);
                chunks.push(chunk);
            }
            return joined(chunks, nBytes);
        } finally {
            exchange.end();
        }
    }

    /**
     * Yield the bytes as they arrive: all of them, or throw. SliceChangedError if the file has another size or, with an
     * etag, another entity tag.
     * @param {RangeRequest} wanted @param {AbortSignal} [signal] @returns {AsyncGenerator<Uint8Array, void, void>}
     */
    async *readRange(wanted, signal) {
        const { url, start, stop, etag } = wanted;
        const exchange = new Exchange(url, READ_S, signal);
        try {
            /** @type {Record<string, string>} */
            const range = { range: `bytes=${start}-${stop - 1}`, ...(etag ? { "if-range": etag } : {}) };
            const response = await exchange.open(this.fetch, { ...this.headers, ...range });
            await raiseForStatus(exchange, response, [200, 206, 416]);
            checkRange(response, wanted);
            let left = stop - start;
            for await (const chunk of exchange.chunks(response, this.now)) {
                const taken = chunk.subarray(0, left);
                left -= taken.length;
                yield taken;
                if (left === 0) return;
            }
            throw new TransferError(`${url}: cut ${left} bytes before the end`);
        } finally {
            exchange.end();
        }
    }
}

/** One request, with a deadline for every wait. */
class Exchange {
    /** @param {string} url @param {number} readS @param {AbortSignal} [signal] */
    constructor(url, readS, signal) {
        this.url = url;
        this.readS = readS;
        this.signal = signal;
        this.abort = new AbortController();
        this.forward = () => this.abort.abort(signal?.reason);
        signal?.throwIfAborted();
        signal?.addEventListener("abort", this.forward);
    }

    /** @param {typeof globalThis.fetch} fetch @param {Record<string, string>} headers @returns {Promise<Response>} */
    open(fetch, headers) {
        const { signal } = this.abort;
        /** @type {RequestInit} */
        const options = { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" };
        return this.within(fetch(this.url, options));
    }

    /**
     * Yield the body as it arrives.
     * @param {Response} response
     * @param {() => number} now
     * @returns {AsyncGenerator<Uint8Array, void, void>}
     */
    async *chunks(response, now) {
        if (response.body === null) return;
        const reader = response.body.getReader();
        let [since, nBytes] = [now(), 0];
        while (true) {
            const { done, value } = await this.within(reader.read());
            if (done) return;
            nBytes += value.length;
            const elapsedS = (now() - since) / 1000;
            if (elapsedS > WINDOW_S) {
                if (nBytes < elapsedS * SLOWEST_BYTES_PER_S) {
                    throw new TransferError(`${this.url}: only ${nBytes} bytes came within ${elapsedS.toFixed(0)} s`);
                }
                [since, nBytes] = [now(), 0];
            }
            yield value;
        }
    }

    /** Close the connection without reading the rest of the body. */
    end() {
        this.signal?.removeEventListener("abort", this.forward);
        this.abort.abort();
    }

    /** @template T @param {Promise<T>} work @returns {Promise<T>} */
    async within(work) {
        /** @type {ReturnType<typeof setTimeout> | undefined} */
        let timer;
        const late = new Promise((_, reject) => {
            const words = `${this.url}: not a byte came within ${this.readS} s`;
            timer = setTimeout(() => reject(new TransferError(words)), 1000 * this.readS);
        });
        try {
            return /** @type {T} */ (await Promise.race([work, late]));
        } catch (error) {
            this.signal?.throwIfAborted();
            if (error instanceof TransferError) throw error;
            const words = error instanceof Error ? error.message : String(error);
            throw new TransferError(`${this.url}: ${words}`, 0, { cause: error });
        } finally {
            clearTimeout(timer);
        }
    }
}

/** @param {Exchange} exchange @param {Response} response @param {number[]} wanted */
async function raiseForStatus(exchange, response, wanted) {
    const { status, statusText } = response;
    if (wanted.includes(status)) return;
    const reason = `${exchange.url}: ${status} ${statusText} ${await errorText(exchange, response)}`.trim();
    if ([408, 425, 429].includes(status) || status >= 500) {
        throw new TransferError(reason, retryAfterS(response.headers.get("retry-after") ?? ""));
    }
    throw new SourceRefusedError(reason);
}

/** Return the seconds of a Retry-After header, up to a limit. @param {string} text */
export function retryAfterS(text) {
    return /^[0-9]{1,9}$/.test(text) ? Math.min(Number(text), RETRY_AFTER_MOST_S) : 0;
}

/** @param {Exchange} exchange @param {Response} response */
async function errorText(exchange, response) {
    /** @type {Uint8Array[]} */
    const chunks = [];
    let nBytes = 0;
    for await (const chunk of exchange.chunks(response, () => 0)) {
        chunks.push(chunk);
        nBytes += chunk.length;
        if (nBytes > ERROR_BYTES) break;
    }
    const text = new TextDecoder().decode(joined(chunks, nBytes).subarray(0, ERROR_BYTES));
    return text.split(/\s+/).join(" ").trim().slice(0, 300);
}

/**
 * Check that the response has the requested bytes.
 * @param {Response} response
 * @param {RangeRequest} wanted
 */
function checkRange(response, { url, start, stop, total, etag }) {
    const found = response.headers.get("etag") ?? "";
    if (etag && found !== etag) {
        throw new SliceChangedError(`${url}: its entity tag was ${etag} and is now ${found || "missing"}`);
    }
    if (response.status === 416) throw new SliceChangedError(`${url}: it has no bytes ${start} to ${stop} any more`);
    if (response.status === 206) {
        const told = response.headers.get("content-range") ?? "";
        if (told === `bytes ${start}-${stop - 1}/${total}`) return;
        if (told.endsWith(`/${total}`)) {
            throw new SourceRefusedError(`${url}: bytes ${start}-${stop - 1} were requested, the answer has "${told}"`);
        }
        throw new SliceChangedError(`${url}: it had ${total} bytes, now Content-Range is "${told}"`);
    }
    const length = response.headers.get("content-length") ?? String(total);
    if (start > 0 || length !== String(total)) throw new SourceRefusedError(`${url}: it does not serve byte ranges`);
}

/** @param {Uint8Array[]} chunks @param {number} nBytes */
function joined(chunks, nBytes) {
    const all = new Uint8Array(nBytes);
    let position = 0;
    for (const chunk of chunks) {
        all.set(chunk, position);
        position += chunk.length;
    }
    return all;
}
