// A site that serves one slice by fetch, as docs/reference/slices.md says, and breaks it as a test asks.

/** What `fetch` does while a test runs. Every request is kept in `asked`. */
export class ScriptedSite {
    asked = []; // {url, range, ifRange, token}
    cuts = []; // bytes until the cut, slice request by slice request; undefined: none
    statuses = []; // of the next slice requests, before any is served
    change = (_position, bytes) => bytes; // of what is sent
    onChunk = () => undefined;

    constructor(slice, manifest, etag) {
        this.slice = slice;
        this.manifest = manifest;
        this.etag = etag;
    }

    /** Bytes of the slice that were asked for, request by request. */
    get ranges() {
        return this.asked.filter(({ url }) => url.includes("/api/slices/")).map(({ range }) => range);
    }

    fetch = async (url, { headers, signal }) => {
        signal.throwIfAborted();
        this.asked.push({ url, range: headers.range, ifRange: headers["if-range"], token: headers.authorization });
        if (url.includes("/api/manifests/")) return new Response(this.manifest);
        const status = this.statuses.shift();
        if (status !== undefined) {
            return new Response('{"error": {"code": "busy", "message": "later"}}', {
                status,
                headers: { "retry-after": "7" },
            });
        }
        return this.part(headers, signal);
    };

    part(headers, signal) {
        const [, start, stop] = headers.range.match(/^bytes=(\d+)-(\d+)$/).map(Number);
        const isSame = headers["if-range"] === undefined || headers["if-range"] === this.etag;
        const [from, to] = isSame ? [start, stop + 1] : [0, this.slice.length];
        const bytes = this.change(from, this.slice.slice(from, to));
        const cut = this.cuts.shift();
        const told = { etag: this.etag, "content-length": String(bytes.length) };
        if (isSame) told["content-range"] = `bytes ${start}-${stop}/${this.slice.length}`;
        return new Response(this.stream(bytes, cut, signal), { status: isSame ? 206 : 200, headers: told });
    }

    stream(bytes, cut, signal) {
        let position = 0;
        const most = cut ?? Infinity;
        return new ReadableStream({
            pull: (controller) => {
                if (signal.aborted) return controller.error(signal.reason);
                if (position >= most) return controller.error(new TypeError("network error"));
                if (position >= bytes.length) return controller.close();
                const chunk = bytes.subarray(position, Math.min(position + 65_536, bytes.length, most));
                position += chunk.length;
                this.onChunk(position);
                controller.enqueue(chunk);
            },
        });
    }
}
