// /dashboard: the swarm, live. Listens to /live and draws every snapshot; says when there is none, or only an old one.
// dashboard.html loads it.

import { html, render, useEffect, useState } from "../../ui/html.js";
import { CoverageCard } from "./coverage.js";
import { formatDuration } from "./format.js";
import { LiveLink, liveUrl } from "./link.js";
import { ServiceCard, Summary } from "./summary.js";
import { ThroughputCard } from "./throughput.js";
import { WorkersCard } from "./workers.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").EmptySnapshot} EmptySnapshot */
/** @typedef {import("./link.js").LinkState} LinkState */

/** @type {LinkState} */
const BEGINNING = { phase: "connecting", ageS: null };

function Dashboard() {
    const [snapshot, setSnapshot] = useState(/** @type {Snapshot | EmptySnapshot | null} */ (null));
    const [link, setLink] = useState(BEGINNING);
    useEffect(() => {
        const line = new LiveLink(liveUrl(location), setSnapshot, setLink);
        line.start();
        return () => line.stop();
    }, []);
    return html`<div class="dash-head">
      ${snapshot?.model && html`<${Lead} model=${snapshot.model} />`}
      <${LinkBadge} link=${link} />
    </div>
    ${snapshot === null && html`<p aria-busy=${link.phase === "full" ? "false" : "true"}>${waitingWords(link)}</p>`}
    ${snapshot !== null && snapshot.model === null && html`<${Problem} problem=${snapshot.problem} />`}
    ${snapshot !== null && snapshot.model !== null && html`<${Swarm} snapshot=${snapshot} isOld=${link.phase === "old"} />`}`;
}

/** @param {{snapshot: Snapshot, isOld: boolean}} props */
function Swarm({ snapshot, isOld }) {
    return html`<div class=${isOld ? "swarm old" : "swarm"} data-at=${snapshot.at}>
      <${Summary} snapshot=${snapshot} />
      <${CoverageCard} snapshot=${snapshot} />
      <div class="pair">
        <${ThroughputCard} throughput=${snapshot.throughput} />
        <${ServiceCard} snapshot=${snapshot} />
      </div>
      <${WorkersCard} snapshot=${snapshot} />
    </div>`;
}

/** @param {{model: import("./types.js").Model}} props */
function Lead({ model }) {
    const facts = { name: model.name, layers: model.moe_layers.length, experts: model.n_expert };
    const words = gettext("%(name)s: %(layers)s layers of %(experts)s experts, held by whoever contributes.");
    return html`<p class="lead">${interpolate(words, facts, true)}</p>`;
}

/** @param {{link: LinkState}} props */
function LinkBadge({ link }) {
    const kind = link.phase === "live" ? "good" : link.phase === "connecting" ? "" : "warn";
    return html`<p class="link" role="status"><span class="badge ${kind}" data-phase=${link.phase}>${linkWords(link)}</span></p>`;
}

/** @param {LinkState} link */
function linkWords({ phase, ageS }) {
    switch (phase) {
        case "live":
            return gettext("Live");
        case "connecting":
            return gettext("Connecting…");
        case "full":
            return gettext("Too many watch: trying again");
        default:
            return interpolate(gettext("Data is %s old: reconnecting"), [formatDuration(ageS ?? 0)]);
    }
}

/** @param {LinkState} link */
function waitingWords(link) {
    return link.phase === "full"
        ? gettext("As many watch this site as may. Your turn comes by itself.")
        : gettext("Waiting for the first snapshot");
}

/** @param {{problem: {code: string, message: string}}} props */
function Problem({ problem }) {
    return html`<div class="notice warn"><p>${gettext("This site has no swarm to show yet.")}</p><p><small>${problem.message}</small></p></div>`;
}

const place = document.getElementById("dashboard");
if (place) {
    place.replaceChildren();
    render(html`<${Dashboard} />`, place);
}
