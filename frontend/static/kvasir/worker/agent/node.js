/**
 * Who a tab is at its site: registers, exchanges the token before it ends, keeps both. The identity part of
 * kvasir/worker/agent/agent.py. `agent.js` calls it; nothing here decides when.
 */

import { notBefore, replaced } from "./plan_changes.js";
import { rotateInS } from "./state.js";

/** @import { AgentMemory } from "./state.js" */
/** @import { Fetcher } from "./fetch.js" */
/** @import { MarketClient, NodeCredentials } from "./market_client.js" */
/** @import { WorkerState } from "./plan_state.js" */

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
     * The state with the node that was kept, if there is one.
     * @param {Readonly<WorkerState>} state
     * @returns {Readonly<WorkerState>}
     */
    resumed(state) {
        const { nodeId, token } = this.world.memory.identity;
        return nodeId && token ? this.become(state, nodeId, token) : state;
    }

    /** Become a node; under the account whose key is kept, if there is one. @param {Readonly<WorkerState>} state */
    async register(state) {
        const { market, memory } = this.world;
        const { name, invite } = this.options;
        const made = await market.register({ name, invite, accountKey: memory.identity.accountKey });
        await this.keep(made);
        return this.become(state, made.nodeId, made.token);
    }

    /** Take a new token; edges are then opened anew. @param {Readonly<WorkerState>} state */
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
