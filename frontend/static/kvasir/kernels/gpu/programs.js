/**
 * The shader programs of the kernel, put together and compiled: before a kernel is ready, never during a call.
 *
 * Called by `gpu/backend.js` and `gpu/kernel.js`. Which files make a program is said in `wgsl/README.md`.
 */

import { KernelError } from "../../errors.js";

/** @import { QuantType } from "../kernel_types.js" */
/** @import { MatrixProgram } from "./dispatches.js" */

/** @typedef {"dot_packed" | "dot_plain"} DotVariant */
/** @typedef {Record<string, string>} GpuSources texts of the .wgsl files by name without its end */

/**
 * What may be measured on a device; no choice changes a bit. `tiledFrom`: from so many pairs of an expert on, `tiled`.
 *
 * @typedef {{lanes: number, tiledFrom: number}} GpuTunables
 */

const FILES = [
    "dot_packed",
    "dot_plain",
    "activations",
    "unpack_rows",
    "silu",
    "quantise",
    "width_1",
    "width_4",
    "exact",
    "matmul",
    "matvec",
    "tiled",
    "k_scales",
    "words",
    "q4_k",
    "q5_k",
    "q6_k",
    "q8_0",
];
/** @type {Record<QuantType, string[]>} */
const TYPE_FILES = {
    Q4_K: ["k_scales", "q4_k"],
    Q5_K: ["k_scales", "q5_k"],
    Q6_K: ["words", "q6_k"],
    Q8_0: ["words", "q8_0"],
};
const PACKED_FEATURE = "packed_4x8_integer_dot_product";
/** What `lanes` may be. */
export const LANES = [1, 2, 4, 8, 16];
/** As `tiledFrom`: `tiled` is not used, and not compiled. */
export const NEVER = 2 ** 30;
const COMPUTE = 4; // GPUShaderStage.COMPUTE
/** @type {MatrixProgram[]} */
const MATRIX_PROGRAMS = ["matvec_1", "matvec_4", "tiled"];
export const SHAPE_BYTES = 32;

/** The files, once for all kernels of this page. @type {Promise<GpuSources> | null} */
let fetched = null;

/** All shader files; throws KernelError when the site does not give one. @returns {Promise<GpuSources>} */
export function readSources() {
    fetched ??= fetchSources().catch((error) => {
        fetched = null;
        throw error;
    });
    return fetched;
}

/** The ways to multiply four bytes that this browser's language has, the faster one first. @returns {DotVariant[]} */
export function dotVariants() {
    const has = navigator.gpu?.wgslLanguageFeatures?.has(PACKED_FEATURE);
    return has ? ["dot_packed", "dot_plain"] : ["dot_plain"];
}

/** Pipelines of one device, with one bind group layout for all. */
export class GpuPrograms {
    /**
     * @param {GPUDevice} device
     * @param {GpuSources} sources
     * @param {DotVariant} dot
     * @param {GpuTunables} tunables
     */
    constructor(device, sources, dot, { lanes, tiledFrom }) {
        this.device = device;
        this.sources = sources;
        this.dot = dot;
        this.header = `const LANES = ${lanes}u;\n`;
        this.matrixPrograms = MATRIX_PROGRAMS.filter((program) => program !== "tiled" || tiledFrom < NEVER);
        this.layout = makeLayout(device);
        this.pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [this.layout] });
        /** @type {Map<string, GPUComputePipeline>} */
        this.ready = new Map();
        /** @type {Map<string, Promise<void>>} */
        this.compiling = new Map();
    }

    /** Compile what is used whatever the weights are. */
    async compileFrame() {
        await Promise.all([
            this.#compile("unpack_rows", this.#text([this.dot, "activations", "unpack_rows"])),
            this.#compile("silu_quantise", this.#text([this.dot, "activations", "silu", "quantise"])),
        ]);
    }

    /** Compile the programs of these weight types. @param {Iterable<QuantType>} types */
    async compile(types) {
        const wanted = [...new Set(types)].flatMap((type) => this.matrixPrograms.map((program) => ({ program, type })));
        await Promise.all(
            wanted.map(({ program, type }) => this.#compile(`${program} ${type}`, this.#matrixSource(program, type))),
        );
    }

    /** A compiled pipeline. @param {string} name "unpack_rows", "silu_quantise", or program and type: "tiled Q4_K" */
    get(name) {
        const pipeline = this.ready.get(name);
        if (!pipeline) throw new KernelError(`the shader program ${name} is not compiled`);
        return pipeline;
    }

    /**
     * @param {MatrixProgram} program
     * @param {QuantType} type
     */
    #matrixSource(program, type) {
        const isTiled = program === "tiled";
        const header = isTiled ? "" : this.header;
        const width = program === "matvec_1" ? "width_1" : "width_4";
        const body = isTiled ? "tiled" : "matvec";
        return header + this.#text([this.dot, width, "exact", "matmul", ...TYPE_FILES[type], body]);
    }

    /** @param {string[]} files */
    #text(files) {
        return files.map((name) => this.sources[name]).join("");
    }

    /**
     * @param {string} name
     * @param {string} code
     */
    #compile(name, code) {
        let work = this.compiling.get(name);
        if (!work) {
            work = this.#build(name, code);
            this.compiling.set(name, work);
        }
        return work;
    }

    /**
     * @param {string} name
     * @param {string} code
     */
    async #build(name, code) {
        const module = this.device.createShaderModule({ label: name, code });
        const compute = { module, entryPoint: "main" };
        try {
            const made = await this.device.createComputePipelineAsync({
                label: name,
                layout: this.pipelineLayout,
                compute,
            });
            this.ready.set(name, made);
        } catch (error) {
            throw new KernelError(`the shader program ${name} does not compile: ${String(error)}`);
        }
    }
}

/** @returns {Promise<GpuSources>} */
async function fetchSources() {
    const texts = await Promise.all(
        FILES.map(async (name) => {
            const url = new URL(`../wgsl/${name}.wgsl`, import.meta.url);
            const answer = await fetch(url);
            if (!answer.ok) throw new KernelError(`${url.pathname} answered ${answer.status}`);
            return [name, `${await answer.text()}\n`];
        }),
    );
    return Object.fromEntries(texts);
}

/** @param {GPUDevice} device */
function makeLayout(device) {
    /** @type {GPUBufferBindingLayout[]} */
    const buffers = [
        { type: "read-only-storage" },
        { type: "read-only-storage" },
        { type: "storage" },
        { type: "read-only-storage" },
        { type: "read-only-storage" },
        { type: "uniform", hasDynamicOffset: true, minBindingSize: SHAPE_BYTES },
    ];
    return device.createBindGroupLayout({
        label: "kx1",
        entries: buffers.map((buffer, binding) => ({ binding, visibility: COMPUTE, buffer })),
    });
}
