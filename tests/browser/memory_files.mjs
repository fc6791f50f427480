// The part of the browser's private file system that SliceFolder uses, in memory, with a quota and broken bits on demand.

/** A DOMException as browsers throw it. */
function refused(name) {
    return new DOMException(`this test's file system says ${name}`, name);
}

/** Behaves as a FileSystemDirectoryHandle with files alone. */
export class MemoryDirectory {
    files = new Map(); // name -> {bytes, modifiedMs, isOpen}
    quotaBytes = Infinity;
    nowMs = 1;

    async getFileHandle(name, { create = false } = {}) {
        if (!this.files.has(name)) {
            if (!create) throw refused("NotFoundError");
            this.files.set(name, { bytes: new Uint8Array(0), modifiedMs: this.nowMs++, isOpen: false });
        }
        return this.handle(name);
    }

    async removeEntry(name) {
        if (!this.files.delete(name)) throw refused("NotFoundError");
    }

    async *values() {
        for (const name of this.files.keys()) yield this.handle(name);
    }

    handle(name) {
        const file = this.files.get(name);
        return {
            kind: "file",
            name,
            getFile: async () => ({
                size: file.bytes.length,
                lastModified: file.modifiedMs,
                arrayBuffer: async () => file.bytes.slice().buffer,
            }),
            createSyncAccessHandle: async () => {
                if (file.isOpen) throw refused("NoModificationAllowedError");
                file.isOpen = true;
                return new MemoryAccess(this, file);
            },
        };
    }

    usedBytes() {
        return [...this.files.values()].reduce((sum, file) => sum + file.bytes.length, 0);
    }
}

/** Behaves as a FileSystemSyncAccessHandle. */
class MemoryAccess {
    constructor(directory, file) {
        this.directory = directory;
        this.file = file;
    }

    getSize() {
        return this.file.bytes.length;
    }

    write(bytes, { at }) {
        const grown = Math.max(0, at + bytes.length - this.file.bytes.length);
        if (this.directory.usedBytes() + grown > this.directory.quotaBytes) throw refused("QuotaExceededError");
        if (grown > 0) {
            const larger = new Uint8Array(at + bytes.length);
            larger.set(this.file.bytes);
            this.file.bytes = larger;
        }
        this.file.bytes.set(bytes, at);
        this.file.modifiedMs = this.directory.nowMs++;
        return bytes.length;
    }

    read(bytes, { at }) {
        const part = this.file.bytes.subarray(at, at + bytes.length);
        bytes.set(part);
        return part.length;
    }

    truncate(nBytes) {
        const cut = new Uint8Array(nBytes);
        cut.set(this.file.bytes.subarray(0, nBytes));
        this.file.bytes = cut;
    }

    flush() {}

    close() {
        this.file.isOpen = false;
    }
}
