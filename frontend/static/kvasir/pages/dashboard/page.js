import { html, render, useEffect, useState } from "../../ui/html.js";
import { CoverageCard } from "./coverage.js";
import { formatCount, formatDuration, formatRate, formatSeconds, formatShare, NOTHING } from "./format.js";
import { LiveLink, liveUrl } from "./link.js";
import { ThroughputCard } from "./throughput.js";
import { WorkersCard } from "./workers.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").EmptySnapshot} EmptySnapshot */
/** @typedef {import("./link.js").LinkState} LinkState */
/** @typedef {import("./types.js").Percentiles} Percentiles */

// /dashboard: the swarm, live. Listens to /live and draws every snapshot; says when there is none, or only an old one.
// dashboard.html loads it.

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

// The dashboard's first figures, and how long requests take. `dashboard` gives it snapshots.

/** @param {{snapshot: Snapshot}} props */
export function Summary({ snapshot }) {
    const { coverage, service, throughput } = snapshot;
    const done = service.row_experts;
    const all = done.workers + done.hot + done.fallback;
    return html`<section class="card summary" aria-label=${gettext("At a glance")}>
    <dl class="figures">
      <${Figure} name=${gettext("Workers")} value=${formatCount(snapshot.n_workers)} />
      <${Figure} name=${gettext("Experts covered")} value=${formatShare(coverage.n_covered, coverage.n_wanted)}
        note=${interpolate(gettext("%s of %s, %s at target"), [coverage.n_covered, coverage.n_wanted, coverage.n_at_target].map(formatCount))} />
      <${Figure} name=${gettext("Computed by workers")} value=${formatShare(done.workers, all)}
        note=${interpolate(gettext("of %s row-experts"), [formatRate(all)])} />
      <${Figure} name=${gettext("Tokens per second")} value=${formatRate(throughput.tokens.at(-1) ?? 0)}
        note=${interpolate(gettext("%s so far"), [formatRate(service.tokens)])} />
      <${Figure} name=${gettext("Requests running")} value=${formatCount(service.running)}
        note=${interpolate(gettext("%s waiting"), [formatCount(service.waiting + (service.queued ?? 0))])} />
    </dl>
  </section>`;
}

/** @param {{name: string, value: string, note?: string}} props */
function Figure({ name, value, note }) {
    return html`<div><dt>${name}</dt><dd>${value}${note && html` <small>${note}</small>`}</dd></div>`;
}

/** @param {{snapshot: Snapshot}} props */
export function ServiceCard({ snapshot }) {
    const { latency, service } = snapshot;
    return html`<section class="card" aria-labelledby="service-title">
    <h2 id="service-title">${gettext("Queue and latency")}</h2>
    <p class="muted">${serviceWords(service)}</p>
    <table class="latency">
      <thead><tr>
        <th scope="col">${gettext("From the request to")}</th>
        <th scope="col" class="number">${gettext("Half within")}</th>
        <th scope="col" class="number">${gettext("95 % within")}</th>
      </tr></thead>
      <tbody>
        <${LatencyRow} name=${gettext("its start")} values=${latency.queue_s} />
        <${LatencyRow} name=${gettext("its first token")} values=${latency.first_token_s} />
        <${LatencyRow} name=${gettext("its end")} values=${latency.request_s} />
      </tbody>
    </table>
    <p class="muted"><small>${interpolate(ngettext("Of the last %s request", "Of the last %s requests", latency.request_s.n), [latency.request_s.n])}</small></p>
  </section>`;
}

/** @param {import("./types.js").Service} service */
function serviceWords(service) {
    if (service.n_backbones === 0) return gettext("No backbone runs: nothing can be generated.");
    const backbones = interpolate(ngettext("%s backbone", "%s backbones", service.n_backbones), [service.n_backbones]);
    const queued = service.queued === null ? NOTHING : formatCount(service.queued);
    return `${backbones} · ${interpolate(gettext("%s of %s slots in use"), [service.running, service.slots])} · ${interpolate(gettext("%s in the queue"), [queued])}`;
}

/** @param {{name: string, values: Percentiles}} props */
function LatencyRow({ name, values }) {
    return html`<tr>
    <th scope="row">${name}</th>
    <td class="number">${formatSeconds(values.p50)}</td>
    <td class="number">${formatSeconds(values.p95)}</td>
  </tr>`;
}
