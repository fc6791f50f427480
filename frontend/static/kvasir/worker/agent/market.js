/**
 * An agent's dealings with its site: registration and tokens, heartbeats, demand, work, and moves that follow from the
 * demand. `agent.js` calls it to perform the plan's actions.
 */

import { AgentEndedError } from "../../errors.js";
import { areSameRanges } from "../../slicing/expert_ranges.js";
import { rangeKey } from "./fetch.js";
import * as after from "./plan_changes.js";
import { notBefore, replaced } from "./plan_changes.js";
import { rotateInS } from "./state.js";

/** @import { Agent } from "./agent.js" */
/** @import { Assigned, MarketClient, NodeCredentials } from "./market_client.js" */
/** @import { Action } from "./plan.js" */
/** @import { Ranges, WorkerState } from "./plan_state.js" */
/** @import { AgentMemory } from "./state.js" */
/** @import { Fetcher } from "./fetch.js" */

/** How slowly a worker moves, in seconds. @typedef {{lookS: number, moveLeastS: number, moveMostS: number}} Pace */

/** @type {Readonly<Pace>} */
const PACE = Object.freeze({ lookS: 60, moveLeastS: 60, moveMostS: 300 });

export class MarketTalk {
    /** @param {Agent} agent */
    constructor(agent) {
        this.agent = agent;
    }

    /** @param {number} roomBytes @param {Ranges} ranges */
    async volunteer(roomBytes, ranges) {
        const { agent } = this;
        const { world } = agent;
        const answer = await world.market.volunteer(agent.state.nodeId, roomBytes, ranges);
        const now = world.clock();
        if (!answer.isAssigned) {
            agent.become(after.notWanted(agent.state, answer, now));
            world.report.say("waiting", { reason: answer.reason, retryS: answer.retryAfterS });
            return;
        }
        if (answer.kernel !== "kx1") {
            const words = `the site's model is computed with ${answer.kernel}; a browser has kx1 alone`;
            throw new AgentEndedError("kernel", words);
        }
        if (agent.state.model !== null && answer.model.fingerprint !== agent.state.model.fingerprint) {
            await agent.forgetModel(`the site serves ${answer.model.name} now`);
        }
        agent.become(after.promised(agent.state, answer, now));
        await agent.save({ relayUrl: answer.relayUrl, rates: this.ratesWith(answer) });
        world.report.say("promised", answer);
    }

    /**
     * Return the rate of each piece that is held, including the new one.
     * @param {Assigned} answer
     * @returns {Record<string, number>}
     */
    ratesWith(answer) {
        const { world, state } = this.agent;
        const known = { ...world.memory.holding.rates, [rangeKey(answer.range)]: answer.rateMicrocredits };
        const keys = state.pieces.map((piece) => rangeKey(piece.range));
        return Object.fromEntries(keys.map((key) => [key, known[key] ?? 0]));
    }

    /** @param {Ranges} ranges @param {readonly string[]} leases */
    async beat(ranges, leases) {
        const { agent } = this;
        const { market, clock, jitter, report } = agent.world;
        const { nodeId, model, stated } = agent.state;
        if (model === null) return;
        const leaseS = await market.heartbeat({ nodeId, model, ranges, leases, facts: agent.options.facts() });
        agent.become(after.beaten(agent.state, ranges, leaseS, clock(), jitter()));
        if (areSameRanges(ranges, stated)) return;
        await agent.save();
        report.say("stated", { ranges, leaseS });
    }

    async look() {
        const { agent } = this;
        const { model } = agent.state;
        if (model === null) return;
        const demand = await agent.world.market.demand(model.fingerprint);
        agent.become(after.looked(agent.state, demand, agent.world.clock(), (agent.options.pace ?? PACE).lookS));
    }

    /** @param {Action} action */
    async move(action) {
        const { agent } = this;
        const now = agent.world.clock();
        const { moveLeastS, moveMostS } = agent.options.pace ?? PACE;
        switch (action.action) {
            case "PlanMove": {
                const delayS = moveLeastS + (moveMostS - moveLeastS) * agent.world.jitter();
                return agent.become(after.moving(agent.state, action.range, now + delayS));
            }
            case "Withdraw":
                return agent.become(after.withdrawn(agent.state, action.range, now));
            case "Stay":
                return agent.become(after.stayed(agent.state));
            case "Drop":
                agent.become(after.dropped(agent.state, action.range, now));
                await agent.save();
                agent.world.report.say("dropped", { range: action.range });
        }
    }
}

/**
 * @typedef {{market: MarketClient, memory: AgentMemory, fetcher: Fetcher, clock: () => number, wallClock: () =>
 *   number}} NodeWorld  clocks in seconds
 */

export class AgentNode {
    /** @param {NodeWorld} world @param {{name: string, invite: string}} options */
    constructor(world, options) {
        this.world = world;
        this.options = options;
    }

    /**
     * Return the state with the stored node, if there is one.
     * @param {Readonly<WorkerState>} state
     * @returns {Readonly<WorkerState>}
     */
    resumed(state) {
        const { nodeId, token } = this.world.memory.identity;
        return nodeId && token ? this.become(state, nodeId, token) : state;
    }

    /** Register a node, under the account whose key is stored, if there is one. @param {Readonly<WorkerState>} state */
    async register(state) {
        const { market, memory } = this.world;
        const { name, invite } = this.options;
        const made = await market.register({ name, invite, accountKey: memory.identity.accountKey });
        await this.keep(made);
        return this.become(state, made.nodeId, made.token);
    }

    /** Exchange the token; edges are then opened again. @param {Readonly<WorkerState>} state */
    async rotate(state) {
        const made = await this.world.market.rotate();
        await this.keep({ nodeId: state.nodeId, accountId: "", accountKey: "", ...made });
        return replaced(this.become(state, state.nodeId, made.token), { served: [] });
    }

    /** @param {NodeCredentials} made */
    async keep(made) {
        const { memory, wallClock } = this.world;
        await memory.saveIdentity({
            nodeId: made.nodeId,
            token: made.token,
            accountId: made.accountId || memory.identity.accountId,
            accountKey: made.accountKey || memory.identity.accountKey,
            sinceS: wallClock(),
            expiresS: made.expires ? Date.parse(made.expires) / 1000 : 0,
        });
    }

    /** @param {Readonly<WorkerState>} state @param {string} nodeId @param {string} token */
    become(state, nodeId, token) {
        const { market, fetcher, memory, clock, wallClock } = this.world;
        market.token = token;
        fetcher.useToken(token);
        const rotateS = clock() + rotateInS(memory.identity, wallClock());
        return notBefore(replaced(state, { nodeId }), { rotateS });
    }
}
