// The dashboard's first figures, and how long requests take. `dashboard` gives it snapshots.

import { html } from "../../ui/html.js";
import { formatCount, formatRate, formatSeconds, formatShare, NOTHING } from "./format.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").Percentiles} Percentiles */

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
