/**
 * Who computed an answer, counted from its trace: by source, by layer, by token. Pure; the playground's pieces draw it.
 * A source is this browser's own worker, another worker, the hot-expert cache, or the backbone's fallback.
 */

/**
 * @typedef {object} TraceReply  GET /v1/requests/{id}/trace
 * @property {number} first_token
 * @property {number[]} layers
 * @property {{kind: "worker" | "hot" | "fallback", worker: string | null}[]} sources
 * @property {[number, number][][][]} tokens  by token, by layer: a source's index, and how many row-experts it computed
 */

/** @typedef {"tab" | "worker" | "hot" | "fallback"} SourceKind */

/**
 * @typedef {object} Node  Who computed something.
 * @property {SourceKind} kind
 * @property {string} worker  "" for the backbone
 * @property {number} tone  0 to 2, so that neighbours of one kind can be told apart
 */

/** @typedef {Node & {share: number, byLayer: number[]}} Source  Its share of all that was counted, and of each layer. */

/**
 * @typedef {object} Trace
 * @property {number} firstToken  number of the first traced token in the answer, from 0
 * @property {number[]} layers
 * @property {Node[]} sources  by kind, the busiest first
 * @property {number[][][]} counts  [token][source][layer] row-experts
 */

/** In this order they are shown. */
export const KINDS = /** @type {const} */ (["tab", "worker", "hot", "fallback"]);
const N_TONES = 3;

/**
 * The reply with this browser's own worker told apart.
 * @param {TraceReply} reply
 * @param {string} ownNodeId  "" when this browser is no worker
 * @returns {Trace}
 */
export function traceOf(reply, ownNodeId) {
    const totals = reply.sources.map(() => 0);
    const counts = reply.tokens.map((token) => {
        const bySource = reply.sources.map(() => reply.layers.map(() => 0));
        token.forEach((layer, number) => {
            for (const [source, n] of layer) {
                bySource[source][number] += n;
                totals[source] += n;
            }
        });
        return bySource;
    });
    const kinds = reply.sources.map(({ kind, worker }) => (worker && worker === ownNodeId ? "tab" : kind));
    const order = [...kinds.keys()].sort(
        (a, b) => KINDS.indexOf(kinds[a]) - KINDS.indexOf(kinds[b]) || totals[b] - totals[a],
    );
    const nTab = kinds.filter((kind) => kind === "tab").length;
    return {
        firstToken: reply.first_token,
        layers: reply.layers,
        sources: order.map((number, place) => ({
            kind: kinds[number],
            worker: reply.sources[number].worker ?? "",
            tone: kinds[number] === "worker" ? (place - nTab) % N_TONES : 0,
        })),
        counts: counts.map((bySource) => order.map((number) => bySource[number])),
    };
}

/**
 * What each source computed of some tokens.
 * @param {Trace} trace
 * @param {number} [token]  number in the trace; all when it is left out
 * @returns {Source[]}
 */
export function sourcesOf(trace, token) {
    const tokens = token === undefined ? trace.counts : [trace.counts[token]];
    const counted = trace.sources.map((_, source) =>
        trace.layers.map((_, layer) => sum(tokens.map((one) => one[source][layer]))),
    );
    const byLayer = trace.layers.map((_, layer) => sum(counted.map((own) => own[layer])));
    const total = sum(byLayer) || 1;
    return trace.sources.map((node, source) => ({
        ...node,
        share: sum(counted[source]) / total,
        byLayer: counted[source].map((n, layer) => n / (byLayer[layer] || 1)),
    }));
}

/**
 * Shares of one token, or of all, by kind; together 1 unless nothing was counted.
 * @param {Trace} trace
 * @param {number} [token]
 * @returns {Record<SourceKind, number>}
 */
export function sharesByKind(trace, token) {
    const shares = { tab: 0, worker: 0, hot: 0, fallback: 0 };
    for (const source of sourcesOf(trace, token)) shares[source.kind] += source.share;
    return shares;
}

/**
 * At most `nMost` sources: those with the smallest shares become one, which has no worker's name.
 * @param {Source[]} sources
 * @param {number} nMost
 * @returns {{shown: Source[], nHidden: number}}
 */
export function largestSources(sources, nMost) {
    if (sources.length <= nMost) return { shown: sources, nHidden: 0 };
    const smallest = new Set(
        [...sources]
            .filter((source) => source.kind === "worker")
            .sort((a, b) => a.share - b.share)
            .slice(0, sources.length - nMost + 1),
    );
    const hidden = [...smallest];
    const others = {
        kind: /** @type {const} */ ("worker"),
        worker: "",
        tone: 0,
        share: sum(hidden.map((source) => source.share)),
        byLayer: hidden[0].byLayer.map((_, layer) => sum(hidden.map((source) => source.byLayer[layer]))),
    };
    const kept = sources.filter((source) => !smallest.has(source));
    const place = kept.findIndex((source) => source.kind === "hot" || source.kind === "fallback");
    kept.splice(place < 0 ? kept.length : place, 0, others);
    return { shown: kept, nHidden: hidden.length };
}

/** @param {number[]} values */
function sum(values) {
    return values.reduce((total, value) => total + value, 0);
}
