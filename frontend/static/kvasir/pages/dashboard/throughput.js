// The throughput card: row-experts per second by who computed them over the last ten minutes, stacked, as a chart of
// uPlot's; beside it tokens per second in words. `dashboard` gives it snapshots.

import uPlot from "uplot";
import { html, useEffect, useRef } from "../../ui/html.js";
import { formatRate } from "./format.js";

/** @typedef {import("./types.js").Throughput} Throughput */
/** @typedef {import("./types.js").Source} Source */

const HEIGHT_PX = 200;
const SOURCES = /** @type {const} */ (["workers", "hot", "fallback"]);
const TOKENS = { workers: "--by-worker", hot: "--by-hot", fallback: "--by-fallback" };

/** @param {{throughput: Throughput}} props */
export function ThroughputCard({ throughput }) {
    const box = useChart(throughput);
    const last = throughput.tokens.length - 1;
    const texts = {
        workers: gettext("workers"),
        hot: gettext("hot cache"),
        fallback: gettext("backbone's own replica"),
    };
    const swatches = { workers: "by-worker", hot: "by-hot", fallback: "by-fallback" };
    return html`<section class="card" aria-labelledby="throughput-title">
    <div class="card-head">
      <h2 id="throughput-title">${gettext("Throughput")}</h2>
      <p class="muted">${gettext("row-experts per second, last ten minutes")}</p>
    </div>
    <div class="chart" ref=${box} role="img" aria-label=${chartWords(throughput)}></div>
    <ul class="legend">${SOURCES.map(
        (name) =>
            html`<li><span class="swatch ${swatches[name]}"></span>${texts[name]} <strong>${formatRate(throughput[name][last] ?? 0)}</strong></li>`,
    )}</ul>
  </section>`;
}

/**
 * What the chart shows, for who does not see it.
 * @param {Throughput} throughput
 * @returns {string}
 */
export function chartWords(throughput) {
    const sums = SOURCES.map((name) => mean(throughput[name]));
    const values = { workers: formatRate(sums[0]), hot: formatRate(sums[1]), fallback: formatRate(sums[2]) };
    return interpolate(
        gettext(
            "Mean of the last ten minutes, row-experts per second: workers %(workers)s, hot cache %(hot)s, backbone's own replica %(fallback)s",
        ),
        values,
        true,
    );
}

/**
 * Data as uPlot draws it: times, then what is stacked, the largest sum first, so that later areas lie over it.
 * @param {Throughput} throughput
 * @returns {[number[], number[], number[], number[]]}
 */
export function stacked({ step_s: stepS, end_s: endS, workers, hot, fallback }) {
    const n = workers.length;
    const times = workers.map((_, i) => endS - (n - 1 - i) * stepS);
    const lower = hot.map((value, i) => value + fallback[i]);
    return [times, workers.map((value, i) => value + lower[i]), lower, fallback];
}

/**
 * Keeps one chart in a box and follows data, theme and size.
 * @param {Throughput} throughput
 */
function useChart(throughput) {
    const box = useRef(/** @type {HTMLElement | null} */ (null));
    const chart = useRef(/** @type {uPlot | null} */ (null));
    const latest = useRef(throughput);
    latest.current = throughput;
    useEffect(() => {
        const element = box.current;
        if (!element) return undefined;
        const make = () => {
            chart.current?.destroy();
            chart.current = new uPlot(chartOptions(element.clientWidth), stacked(latest.current), element);
        };
        make();
        const observer = new ResizeObserver(() =>
            chart.current?.setSize({ width: element.clientWidth, height: HEIGHT_PX }),
        );
        observer.observe(element);
        document.addEventListener("kvasir-theme", make);
        return () => {
            observer.disconnect();
            document.removeEventListener("kvasir-theme", make);
            chart.current?.destroy();
        };
    }, []);
    useEffect(() => chart.current?.setData(stacked(throughput)), [throughput]);
    return box;
}

/**
 * @param {number} width
 * @returns {uPlot.Options}
 */
function chartOptions(width) {
    const style = getComputedStyle(document.documentElement);
    const language = document.documentElement.lang || "en";
    const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit" });
    /** @param {Source} name */
    const area = (name) => {
        const colour = style.getPropertyValue(TOKENS[name]).trim();
        return {
            stroke: colour,
            fill: colour,
            width: 1,
            points: { show: false },
            paths: uPlot.paths.stepped?.({ align: -1 }),
        };
    };
    const axis = { stroke: style.getPropertyValue("--muted"), font: "12px system-ui, sans-serif" };
    const grid = { stroke: style.getPropertyValue("--line"), width: 1 };
    return {
        width,
        height: HEIGHT_PX,
        legend: { show: false },
        cursor: { show: false },
        scales: { y: { range: (_, __, largest) => [0, Math.max(1, largest * 1.1)] } },
        series: [{}, area("workers"), area("hot"), area("fallback")],
        axes: [
            {
                ...axis,
                grid: { show: false },
                ticks: grid,
                values: (_, times) => times.map((time) => clock.format(time * 1000)),
                space: 70,
            },
            { ...axis, grid, ticks: { show: false }, size: 52, values: (_, values) => values.map(formatRate) },
        ],
    };
}

/** @param {readonly number[]} values */
function mean(values) {
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
}
