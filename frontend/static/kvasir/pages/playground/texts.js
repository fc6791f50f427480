/** Sentences of the playground: why something failed, how an answer ended, who a source is. Its pieces call it. */

import { formatNumber } from "../../ui/format.js";

/** @typedef {import("./api.js").ApiFailure} ApiFailure */
/** @typedef {import("./session.js").Turn} Turn */

/** What a visitor is told. The API's own words are English, so known codes have sentences here. @param {ApiFailure} failure */
export function failureText(failure) {
    switch (failure.code) {
        case "playground_off":
            return gettext("Visitors get no key here. Enter a key of your own.");
        case "invalid_api_key":
            return gettext("This key does not count here. Check it, or go on as a visitor.");
        case "wrong_scope":
            return gettext("This key is not for generating.");
        case "rate_limit_exceeded":
            return interpolate(gettext("Too many requests. Try again in %s s."), [
                formatNumber(failure.retryAfterS || 1),
            ]);
        case "queue_full":
        case "queue_timeout":
            return gettext("Too many are asking right now. Try again in a moment.");
        case "no_backbone":
        case "backbone_stopping":
        case "model_not_found":
            return gettext("No backbone serves this model right now.");
        case "backbone_lost":
        case "stream_gap":
        case "stream_cut":
            return gettext("The answer broke off: the backbone went away. Send it again.");
        case "context_length_exceeded":
            return gettext(
                "The conversation is longer than the model's context. Begin a new one, or ask for fewer tokens.",
            );
        case "site_away":
            return gettext("The site cannot be reached.");
        default:
            return interpolate(gettext("It failed: %s"), [failure.message]);
    }
}

/** How an answer ended, and how fast it was. @param {Turn} turn @param {number} tokensPerS */
export function endText(turn, tokensPerS) {
    const nTokens = turn.tokens.length;
    const count = interpolate(ngettext("%s token", "%s tokens", nTokens), [formatNumber(nTokens)]);
    const speed = tokensPerS ? interpolate(gettext("%s/s"), [formatNumber(tokensPerS, tokensPerS < 10 ? 1 : 0)]) : "";
    return [count, speed, reasonText(turn)].filter(Boolean).join(" · ");
}

/** @param {Turn} turn */
function reasonText(turn) {
    if (turn.phase === "stopped") return gettext("stopped");
    if (turn.finishReason === "length") return gettext("at the limit of tokens");
    return "";
}

/**
 * A source's name.
 * @param {{kind: import("./sources.js").SourceKind, worker: string}} source
 * @param {number} [nHidden]  workers that a source without a name stands for
 */
export function sourceName(source, nHidden = 0) {
    if (source.kind === "tab") return gettext("This browser");
    if (source.kind === "hot") return gettext("Hot cache");
    if (source.kind === "fallback") return gettext("Backbone");
    if (source.worker === "operator") return gettext("Operator's workers");
    if (!source.worker)
        return interpolate(ngettext("%s more worker", "%s more workers", nHidden), [formatNumber(nHidden)]);
    return interpolate(gettext("Worker %s"), [source.worker.slice(0, 8)]);
}

/** A kind of source, for the legend. @param {import("./sources.js").SourceKind} kind */
export function kindName(kind) {
    return {
        tab: gettext("This browser"),
        worker: gettext("Workers"),
        hot: gettext("Hot cache"),
        fallback: gettext("Backbone"),
    }[kind];
}
