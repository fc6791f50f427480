// Draws layers x experts on a canvas: one pixel a cell into a small picture, which is scaled up without smoothing. A
// redraw of 48 x 256 takes far less than a frame. It knows pixels and cells, and nothing of what they mean.

/** @typedef {import("./types.js").Cell} Cell */

const LINES_FROM_PX = 10; // cells that are smaller have no lines between them

export class Heatmap {
    /** @param {HTMLCanvasElement} canvas  whose size its style gives */
    constructor(canvas) {
        this.canvas = canvas;
        this.nLayer = 0;
        this.nExpert = 0;
        /** @type {Cell | null} */
        this.cursor = null;
        this.lineColour = "#000";
        this.cursorColour = "#f00";
        this.picture = new OffscreenCanvas(1, 1);
    }

    /**
     * Show other colours.
     * @param {number} nLayer
     * @param {number} nExpert
     * @param {Uint32Array<ArrayBuffer>} pixels  [nLayer * nExpert], as ImageData has them
     */
    show(nLayer, nExpert, pixels) {
        if (nLayer < 1 || nExpert < 1 || pixels.length !== nLayer * nExpert) {
            throw new Error(`${pixels.length} pixels are not ${nLayer} x ${nExpert} cells`);
        }
        if (nLayer !== this.nLayer || nExpert !== this.nExpert) {
            this.nLayer = nLayer;
            this.nExpert = nExpert;
            this.picture = new OffscreenCanvas(nExpert, nLayer);
            this.cursor = null;
        }
        const image = new ImageData(
            new Uint8ClampedArray(pixels.buffer, pixels.byteOffset, pixels.byteLength),
            nExpert,
            nLayer,
        );
        this.picture.getContext("2d")?.putImageData(image, 0, 0);
        this.draw();
    }

    /**
     * Mark a cell, or none.
     * @param {Cell | null} cell
     */
    point(cell) {
        this.cursor = cell;
        this.draw();
    }

    /**
     * The cell under a point of the screen; null beside the map.
     * @param {number} clientX
     * @param {number} clientY
     * @returns {Cell | null}
     */
    cellAt(clientX, clientY) {
        const box = this.canvas.getBoundingClientRect();
        const expert = Math.floor(((clientX - box.left) / box.width) * this.nExpert);
        const layer = Math.floor(((clientY - box.top) / box.height) * this.nLayer);
        const isInside = layer >= 0 && layer < this.nLayer && expert >= 0 && expert < this.nExpert;
        return isInside ? { layer, expert } : null;
    }

    /** Draw everything anew, at the size that the canvas has now. */
    draw() {
        const context = this.canvas.getContext("2d");
        if (!context || this.nLayer === 0) return;
        const width = Math.max(1, Math.round(this.canvas.clientWidth * devicePixelRatio));
        const height = Math.max(1, Math.round(this.canvas.clientHeight * devicePixelRatio));
        if (this.canvas.width !== width || this.canvas.height !== height) {
            this.canvas.width = width;
            this.canvas.height = height;
        }
        context.imageSmoothingEnabled = false;
        context.drawImage(this.picture, 0, 0, width, height);
        this.#drawLines(context, width, height);
        if (this.cursor) this.#drawCursor(context, width, height, this.cursor);
    }

    /**
     * @param {CanvasRenderingContext2D} context
     * @param {number} width
     * @param {number} height
     */
    #drawLines(context, width, height) {
        const thickness = Math.max(1, Math.round(devicePixelRatio));
        context.fillStyle = this.lineColour;
        if (width / this.nExpert >= LINES_FROM_PX * devicePixelRatio) {
            for (let expert = 1; expert < this.nExpert; expert++) {
                context.fillRect(Math.round((expert * width) / this.nExpert), 0, thickness, height);
            }
        }
        if (height / this.nLayer >= LINES_FROM_PX * devicePixelRatio) {
            for (let layer = 1; layer < this.nLayer; layer++) {
                context.fillRect(0, Math.round((layer * height) / this.nLayer), width, thickness);
            }
        }
    }

    /**
     * @param {CanvasRenderingContext2D} context
     * @param {number} width
     * @param {number} height
     * @param {Cell} cell
     */
    #drawCursor(context, width, height, { layer, expert }) {
        const thickness = Math.max(2, Math.round(2 * devicePixelRatio));
        const left = Math.round((expert * width) / this.nExpert);
        const top = Math.round((layer * height) / this.nLayer);
        const cellWidth = Math.max(thickness * 3, width / this.nExpert);
        const cellHeight = Math.max(thickness * 3, height / this.nLayer);
        const x = Math.min(left, width - cellWidth);
        const y = Math.min(top, height - cellHeight);
        context.lineWidth = thickness;
        context.strokeStyle = this.cursorColour;
        context.strokeRect(x + thickness / 2, y + thickness / 2, cellWidth - thickness, cellHeight - thickness);
    }
}
