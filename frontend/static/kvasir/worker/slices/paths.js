/**
 * The files of slices in the browser's own file system (OPFS): names, small documents, and one data file open for
 * writing. Only dedicated workers can use it: pages have no synchronous access. A slice has one data file, whole or
 * not; `slices/repair.js` alone tells whether it is right.
 */

import { DiskFullError, DownloadError, StorageError } from "../../errors.js";

/** @import { ExpertRange } from "../agent/plan_state.js" */

const FOLDER = "slices";
const OPEN_ATTEMPTS = 50; // a closed tab releases its files only after a moment
const OPEN_PAUSE_MS = 100;

/** @typedef {{data: string, state: string, manifest: string}} SliceNames */

/**
 * Return the file names for these experts (merged ranges) of this model. They contain the fingerprint, which comes from
 * the site.
 * @param {string} fingerprint @param {readonly ExpertRange[]} ranges @returns {Promise<SliceNames>}
 */
export async function sliceNames(fingerprint, ranges) {
    if (!/^[0-9a-f]{64}$/.test(fingerprint)) {
        throw new DownloadError(`the model's fingerprint is "${fingerprint.slice(0, 80)}"; 64 hex digits are needed`);
    }
    const text = ranges.map((item) => `${item.layer}:${item.start}-${item.stop}`).join();
    const digest = await sha256([new TextEncoder().encode(text)]);
    return namesOf(`${fingerprint.slice(0, 16)}-${digest.slice(0, 16)}`);
}

/** Return the file names with this stem. @param {string} stem @returns {SliceNames} */
export function namesOf(stem) {
    return { data: `${stem}.gguf`, state: `${stem}.state.json`, manifest: `${stem}.manifest.json` };
}

/** Return the SHA-256 over consecutive pieces, as hex. @param {Uint8Array<ArrayBuffer>[]} pieces */
export async function sha256(pieces) {
    const whole = pieces.length === 1 ? pieces[0] : await new Blob(pieces).arrayBuffer();
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
    return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The folder of all slices. */
export class SliceFolder {
    /** @param {FileSystemDirectoryHandle} handle */
    constructor(handle) {
        this.handle = handle;
    }

    /** Open or create the folder. Throws StorageError if the browser has no storage, as some in private windows. */
    static async open() {
        try {
            const root = await navigator.storage.getDirectory();
            return new SliceFolder(await root.getDirectoryHandle(FOLDER, { create: true }));
        } catch (error) {
            throw new StorageError(`the browser gives this page no file storage: ${words(error)}`, { cause: error });
        }
    }

    /** List the files. @returns {Promise<{name: string, nBytes: number, modifiedMs: number}[]>} */
    async entries() {
        const found = [];
        for await (const handle of this.handle.values()) {
            if (handle.kind !== "file") continue;
            const file = await handle.getFile();
            found.push({ name: handle.name, nBytes: file.size, modifiedMs: file.lastModified });
        }
        return found;
    }

    /**
     * Read a small file; null if it does not exist.
     * @param {string} name
     * @returns {Promise<Uint8Array<ArrayBuffer> | null>}
     */
    async read(name) {
        try {
            const handle = await this.handle.getFileHandle(name);
            return new Uint8Array(await (await handle.getFile()).arrayBuffer());
        } catch (error) {
            if (error instanceof DOMException && error.name === "NotFoundError") return null;
            throw new StorageError(`${name} cannot be read: ${words(error)}`, { cause: error });
        }
    }

    /** Replace a small file. @param {string} name @param {Uint8Array} bytes */
    async write(name, bytes) {
        const file = await this.openData(name);
        try {
            file.truncate(0);
            file.writeAt(0, bytes);
            file.flush();
        } finally {
            file.close();
        }
    }

    /** Return the size of a file; 0 if it does not exist. @param {string} name */
    async size(name) {
        try {
            return (await (await this.handle.getFileHandle(name)).getFile()).size;
        } catch {
            return 0;
        }
    }

    /** Delete a file if it exists. @param {string} name */
    async remove(name) {
        try {
            await this.handle.removeEntry(name);
        } catch (error) {
            if (error instanceof DOMException && error.name === "NotFoundError") return;
            throw new StorageError(`${name} cannot be deleted: ${words(error)}`, { cause: error });
        }
    }

    /**
     * Open a file for reading and writing, exclusively.
     * @param {string} name
     * @returns {Promise<DataFile>}
     */
    async openData(name) {
        for (let attempt = 1; ; attempt++) {
            try {
                const handle = await this.handle.getFileHandle(name, { create: true });
                return new DataFile(name, await handle.createSyncAccessHandle());
            } catch (error) {
                const isBusy = error instanceof DOMException && error.name === "NoModificationAllowedError";
                if (!isBusy || attempt >= OPEN_ATTEMPTS) throw writeError(name, error);
                await new Promise((resolve) => setTimeout(resolve, OPEN_PAUSE_MS));
            }
        }
    }
}

/** An open file. Writes complete or throw; a failed write leaves no hole. */
export class DataFile {
    /** @param {string} name @param {FileSystemSyncAccessHandle} handle */
    constructor(name, handle) {
        this.name = name;
        this.handle = handle;
        this.nBytes = handle.getSize();
    }

    /** Append. Throws DiskFullError or StorageError; the bytes that fitted are kept. @param {Uint8Array} bytes */
    append(bytes) {
        this.writeAt(this.nBytes, bytes);
    }

    /** Write within the file, or at its end. @param {number} position @param {Uint8Array} bytes */
    writeAt(position, bytes) {
        let left = bytes;
        while (left.length > 0) {
            const nWritten = this.attempt(() => this.handle.write(left, { at: position }));
            if (nWritten === 0) throw new DiskFullError(`${this.name}: there is no room for the rest of the slice`);
            position += nWritten;
            left = left.subarray(nWritten);
            this.nBytes = Math.max(this.nBytes, position);
        }
    }

    /**
     * Read bytes. Throws StorageError if the file ends before.
     * @param {{offset: number, nBytes: number}} place
     */
    read({ offset, nBytes }) {
        const bytes = new Uint8Array(nBytes);
        const nRead = this.attempt(() => this.handle.read(bytes, { at: offset }));
        if (nRead !== nBytes) throw new StorageError(`${this.name}: byte ${offset + nRead} is not there`);
        return bytes;
    }

    /** Cut the file. @param {number} nBytes */
    truncate(nBytes) {
        this.attempt(() => this.handle.truncate(nBytes));
        this.nBytes = nBytes;
    }

    flush() {
        this.attempt(() => this.handle.flush());
    }

    close() {
        this.handle.close();
    }

    /** @template T @param {() => T} work @returns {T} */
    attempt(work) {
        try {
            return work();
        } catch (error) {
            throw writeError(this.name, error);
        }
    }
}

/** @param {string} name @param {unknown} error */
function writeError(name, error) {
    if (error instanceof DOMException && error.name === "QuotaExceededError") {
        return new DiskFullError(
            `${name}: the browser's quota has no room for the rest; free some space, and the download resumes`,
        );
    }
    return new StorageError(`${name}: the slice cannot be written: ${words(error)}`, { cause: error });
}

/** @param {unknown} error */
function words(error) {
    return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
}
