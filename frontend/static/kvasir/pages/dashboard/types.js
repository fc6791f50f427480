// Types of the snapshots from /live. docs/operate/dashboard.md describes them, frontend/live/snapshot.py makes them.

/**
 * @typedef {object} Model
 * @property {string} name
 * @property {string} fingerprint
 * @property {number} n_layer
 * @property {number} n_expert
 * @property {number[]} moe_layers  the layers that have experts, ascending
 * @property {number[]} expert_bytes  of one expert, by layer; 0 where a layer has none
 */

/**
 * @typedef {object} Coverage Arrays are flat, [n_layer * n_expert]; targets are 0 in layers without experts.
 * @property {number} version
 * @property {number[]} replicas
 * @property {number[]} pending leased, and not served yet
 * @property {number[]} targets
 * @property {number} n_wanted experts that have a target
 * @property {number} n_covered
 * @property {number} n_at_target
 * @property {number} n_lacking replicas missing to reach the targets
 */

/**
 * @typedef {object} Worker
 * @property {string} id
 * @property {string} kind as the worker states: cpu, gpu, browser
 * @property {string} backend
 * @property {string} os
 * @property {string} region in its owner's words; "" if not given
 * @property {[number, number, number][]} ranges layer, first expert, the one after the last
 * @property {number} n_experts
 * @property {number} bytes
 * @property {number | null} round_trip_ms
 * @property {number} rows_per_s
 * @property {boolean} usable
 * @property {"proven" | "unproven" | "quarantined"} trust
 * @property {number} verified
 * @property {number} failures
 * @property {number | null} since_ms
 */

/** @typedef {"workers" | "hot" | "fallback"} Source */

/**
 * @typedef {object} Service
 * @property {number} n_backbones
 * @property {number} running
 * @property {number} waiting
 * @property {number} slots
 * @property {number | null} queued
 * @property {number} tokens
 * @property {Record<Source, number>} row_experts
 */

/** @typedef {{n: number, p50: number | null, p95: number | null}} Percentiles  Seconds. */

/** @typedef {{queue_s: Percentiles, first_token_s: Percentiles, request_s: Percentiles}} Latency */

/**
 * @typedef {object} Throughput  Rates per second in steps that end at `end_s`, the oldest first.
 * @property {number} step_s
 * @property {number} end_s
 * @property {number[]} tokens
 * @property {number[]} workers
 * @property {number[]} hot
 * @property {number[]} fallback
 */

/**
 * @typedef {object} Snapshot
 * @property {number} v
 * @property {number} at  Unix time in ms
 * @property {null} problem
 * @property {Model} model
 * @property {Coverage} coverage
 * @property {number[]} traffic  rows/s, flat
 * @property {number} n_workers
 * @property {Worker[]} workers
 * @property {Service} service
 * @property {Latency} latency
 * @property {Throughput} throughput
 */

/** @typedef {{v: number, at: number, problem: {code: string, message: string}, model: null}} EmptySnapshot */

/** @typedef {{layer: number, expert: number}} Cell */

export {};
