/**
 * The messages between a page and its contributing worker: commands one way, one published state the other.
 * `tab/client.js` is the page's side, `tab/main.js` the worker's. There is no text for people here: the page turns
 * codes into sentences that can be translated.
 */

// Page to worker

/**
 * @typedef {object} StartOptions The visitor's consent.
 * @property {number} budgetBytes memory in all, including the program's own; also the most kept on disk
 * @property {string} [invite] for sites that register nodes by invitation only
 * @property {string} [accountKey] `kva-…` of a signed-in visitor: a node that registers now belongs to that account
 * @property {boolean} [onlyOnPower] pause while the device runs on battery
 * @property {boolean} [onlyUnmetered] pause while the connection is metered or saves data
 * @property {string} [region] the place that the visitor chose to publish, such as "Java"; "" for none
 */

/**
 * @typedef {{type: "inspect", software: boolean}} InspectCommand Inspect the device; `state.device` and `.advice`
 *   follow.
 */
/** @typedef {{type: "start", options: StartOptions, software: boolean}} StartCommand */
/** @typedef {{type: "pause"}} PauseCommand  Answer requests in flight, take no more; weights stay loaded. */
/** @typedef {{type: "resume"}} ResumeCommand */
/**
 * @typedef {{type: "leave", erase: boolean}} LeaveCommand  Withdraw, drain, end; `erase`: delete the weights as well.
 */
/** @typedef {{type: "surroundings", surroundings: Surroundings}} SurroundingsCommand  The page saw a change. */
/** @typedef {{type: "woke"}} WokeCommand  The page was frozen or hidden and is back. */
/** @typedef {{type: "recoveryKey", id: number}} RecoveryKeyCommand  Answered by RecoveryKeyReply. */
/** @typedef {{type: "restore", id: number, accountKey: string}} RestoreCommand  Work for this account; DoneReply. */
/** @typedef {{type: "forget", id: number}} ForgetCommand  Delete identity, settings and weights; DoneReply. */

/**
 * @typedef {InspectCommand | StartCommand | PauseCommand | ResumeCommand | LeaveCommand | SurroundingsCommand
 *   | WokeCommand | RecoveryKeyCommand | RestoreCommand | ForgetCommand} PageCommand
 */

/**
 * @typedef {object} Surroundings What only a page can see. `null`: the browser does not report it.
 * @property {boolean | null} isOnPower
 * @property {boolean | null} isMetered
 * @property {boolean} isVisible
 */

// Worker to page

/** @typedef {{type: "state", state: ContributionState}} StateMessage  The whole state, at most every 250 ms. */
/** @typedef {{type: "recoveryKey", id: number, accountKey: string}} RecoveryKeyReply  "" while there is none. */
/**
 * @typedef {{type: "done", id: number, problem: string}} DoneReply `problem` is "" on success, else a code:
 *   `busy` (stop contributing first) or one of `Problem`.
 */
/** @typedef {StateMessage | RecoveryKeyReply | DoneReply} WorkerMessage */

/**
 * The worker's phase: `idle` nothing runs (not started, or left) · `starting` storage, kernel and self-test · `working`
 * the agent works, see `activity` · `paused` see `pauseReason` · `recovering` the GPU was lost, see `problem.retryAtMs`
 * · `leaving` answers requests in flight · `elsewhere` another tab of this browser is the worker · `unsupported` this
 * browser has neither WebGPU nor WebAssembly SIMD · `failed` it cannot continue, see `problem`.
 * @typedef {"idle" | "starting" | "working" | "paused" | "recovering" | "leaving" | "elsewhere" | "unsupported"
 *   | "failed"} Phase
 */

/**
 * What a working worker is doing: `registering` registers a node · `asking` asks the market for work · `downloading`
 * see `download` · `verifying` hashes the download · `loading` loads experts into the kernel · `dialling` connects to
 * the relay · `serving` answers backbones · `waiting` there is no work, or the site is not reachable, see `problem`.
 * @typedef {"none" | "registering" | "asking" | "downloading" | "verifying" | "loading" | "dialling" | "serving"
 *   | "waiting"} Activity
 */

/** @typedef {"" | "visitor" | "battery" | "metered"} PauseReason */

/**
 * Why something does not continue. `code` selects the page's sentence, `detail` is one English sentence with the
 * values. Codes: `site_away`, `relay_away`, `nothing_wanted`, `no_room`, `download_failed`, `quarantined`,
 * `token_refused`, `invite_needed`, `registration_closed`, `refused`, `storage_unavailable`, `memory`, `gpu_lost`,
 * `reload_needed`, `kernel`, `unsupported`, `model_changed`, `defect`.
 * @typedef {object} Problem
 * @property {string} code
 * @property {string} detail
 * @property {number} retryAtMs Unix ms of the next automatic attempt; 0: none
 */

/**
 * @typedef {object} DeviceFacts
 * @property {boolean} hasWebGpu there is a usable adapter
 * @property {boolean} hasWasmSimd
 * @property {string} adapter the browser's description of the GPU; "" if there is none
 * @property {boolean} isSoftwareAdapter it computes on the CPU; only used under the test switch `?software=1`
 * @property {number} gpuBytesMost most bytes of experts that the adapter's limits allow; 0 without one
 * @property {number} memoryBytes `navigator.deviceMemory`, which is coarse; 0 if not reported
 * @property {number} diskFreeBytes quota less usage; 0 if unknown
 * @property {boolean} isDiskKept the browser promised not to evict stored data
 * @property {number} nThreads `navigator.hardwareConcurrency`
 * @property {boolean} isMobile
 */

/**
 * Budgets to choose from (bytes, including the program's own). `mostBytes < leastBytes`: this device cannot contribute.
 * @typedef {object} BudgetAdvice
 * @property {number} suggestedBytes
 * @property {number} leastBytes
 * @property {number} mostBytes
 * @property {"memory" | "gpu" | "disk" | "mobile"} boundBy the limit that sets `mostBytes`
 */

/**
 * @typedef {object} KernelFacts
 * @property {string} name  "kx1"
 * @property {string} fingerprint
 * @property {("webgpu" | "wasm")[]} backends
 * @property {number} loadedBytes
 * @property {number} capacityBytes
 */

/** @typedef {{name: string, fingerprint: string, nLayer: number, nExpert: number}} ModelFacts */

/**
 * One range leased to this worker, for the small map.
 * @typedef {object} HeldRange
 * @property {number} layer
 * @property {number} start
 * @property {number} stop first expert after it
 * @property {number} nBytes
 * @property {"promised" | "fetched" | "served"} step
 */

/**
 * Bytes that were on the disk before count as done, but not for the speed.
 * @typedef {object} DownloadFacts
 * @property {number} layer
 * @property {number} start
 * @property {number} stop
 * @property {number} doneBytes
 * @property {number} totalBytes
 * @property {number} bytesPerS
 */

/**
 * Answered requests since the worker started (`total…`: since this identity was created).
 * @typedef {object} ServedFacts
 * @property {number} nRequests
 * @property {number} nRowExperts one row through one expert each: what the market pays for
 * @property {number} rowExpertsPerS over the last ten seconds
 * @property {number} totalRowExperts
 * @property {number} lastAtMs Unix ms; 0: nothing yet
 * @property {number} nBackbones connected now
 */

/**
 * From GET /api/rewards with this node's token. Microcredits are whole numbers.
 * @typedef {object} RewardFacts
 * @property {number} earnedMicrocredits
 * @property {number} paidRowExperts verified and paid
 * @property {number} unpaidRowExperts counted, but not paid
 * @property {number} withheldMicrocredits
 * @property {number} pendingRowExperts answered, and not yet verified
 * @property {number} pendingMicrocredits their value at `rateMicrocredits`
 * @property {number} verifiedShare 0 to 1, of all answered
 * @property {number} rateMicrocredits of one row-expert, mean over the holdings; 0: unknown
 * @property {boolean} isQuarantined
 * @property {number} asOfMs Unix ms
 */

/**
 * @typedef {{usedBytes: number, quotaBytes: number, downloadedBytes: number}} StorageFacts  `downloadedBytes`: over
 *   the network since the start
 */

/**
 * @typedef {{nodeId: string, accountId: string, hasRecoveryKey: boolean}} IdentityFacts Empty: not registered.
 */

/**
 * @typedef {{budgetBytes: number, onlyOnPower: boolean, onlyUnmetered: boolean, region: string, isWanted: boolean}}
 *   SavedSettings  `isWanted`: it was working when the page was closed, so it may continue without a new consent.
 */

/**
 * Everything that a page shows.
 * @typedef {object} ContributionState
 * @property {Phase} phase
 * @property {Activity} activity
 * @property {PauseReason} pauseReason
 * @property {Problem | null} problem
 * @property {DeviceFacts | null} device
 * @property {BudgetAdvice | null} advice
 * @property {SavedSettings | null} settings
 * @property {IdentityFacts} identity
 * @property {ModelFacts | null} model
 * @property {HeldRange[]} ranges
 * @property {DownloadFacts | null} download
 * @property {KernelFacts | null} kernel
 * @property {ServedFacts} served
 * @property {RewardFacts | null} rewards
 * @property {StorageFacts} storage
 * @property {string} relayUrl "" while there is none
 * @property {boolean} isJoined at the relay
 * @property {number} startedAtMs Unix ms; 0 while idle
 */

/**
 * Return the initial state.
 * @returns {ContributionState}
 */
export function initialState() {
    return {
        phase: "idle",
        activity: "none",
        pauseReason: "",
        problem: null,
        device: null,
        advice: null,
        settings: null,
        identity: { nodeId: "", accountId: "", hasRecoveryKey: false },
        model: null,
        ranges: [],
        download: null,
        kernel: null,
        served: { nRequests: 0, nRowExperts: 0, rowExpertsPerS: 0, totalRowExperts: 0, lastAtMs: 0, nBackbones: 0 },
        rewards: null,
        storage: { usedBytes: 0, quotaBytes: 0, downloadedBytes: 0 },
        relayUrl: "",
        isJoined: false,
        startedAtMs: 0,
    };
}
