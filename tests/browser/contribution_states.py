"""States of the contributing worker, as worker/tab/messages.js has them, for tests of how the page draws each.

The page gets them from a stand-in for its worker, so that no test of looks needs a download or a GPU.
"""

from __future__ import annotations

import json
from typing import Any

MIB = 1 << 20
_DEVICE = {
    "hasWebGpu": True, "hasWasmSimd": True, "adapter": "a graphics processor with a long name (R) 4070",
    "isSoftwareAdapter": False, "gpuBytesMost": 4096 * MIB, "memoryBytes": 8192 * MIB, "diskFreeBytes": 60_000 * MIB,
    "isDiskKept": True, "nThreads": 8, "isMobile": False,
}  # fmt: skip
_ADVICE = {"suggestedBytes": 1024 * MIB, "leastBytes": 96 * MIB, "mostBytes": 3072 * MIB, "boundBy": "memory"}
_IDLE: dict[str, Any] = {
    "phase": "idle", "activity": "none", "pauseReason": "", "problem": None, "device": _DEVICE, "advice": _ADVICE,
    "settings": None, "identity": {"nodeId": "", "accountId": "", "hasRecoveryKey": False}, "model": None, "ranges": [],
    "download": None, "kernel": None, "rewards": None, "relayUrl": "", "isJoined": False, "startedAtMs": 0,
    "served": {
        "nRequests": 0, "nRowExperts": 0, "rowExpertsPerS": 0, "totalRowExperts": 0, "lastAtMs": 0, "nBackbones": 0,
    },
    "storage": {"usedBytes": 0, "quotaBytes": 0, "downloadedBytes": 0},
}  # fmt: skip
_RUNNING = _IDLE | {
    "phase": "working", "activity": "serving", "startedAtMs": 1_700_000_000_000, "isJoined": True,
    "identity": {"nodeId": "a1b2c3d4e5f60718", "accountId": "99aa88bb77cc66dd", "hasRecoveryKey": True},
    "model": {"name": "a-model-of-many-experts.q4_k_m", "fingerprint": "f" * 64, "nLayer": 48, "nExpert": 128},
    "ranges": [
        {"layer": 1, "start": 0, "stop": 90, "nBytes": 80 * MIB, "step": "served"},
        {"layer": 30, "start": 40, "stop": 120, "nBytes": 70 * MIB, "step": "fetched"},
        {"layer": 47, "start": 8, "stop": 16, "nBytes": 7 * MIB, "step": "promised"},
    ],
    "kernel": {
        "name": "kx1", "fingerprint": "0a1b2c3d4e", "backends": ["webgpu", "wasm"], "loadedBytes": 80 * MIB,
        "capacityBytes": 1024 * MIB,
    },
    "storage": {"usedBytes": 150 * MIB, "quotaBytes": 60_000 * MIB, "downloadedBytes": 150 * MIB},
    "served": {
        "nRequests": 1421, "nRowExperts": 33_463, "rowExpertsPerS": 182.4, "totalRowExperts": 33_463, "lastAtMs": 0,
        "nBackbones": 1,
    },
    "rewards": {
        "earnedMicrocredits": 48_291_234, "paidRowExperts": 33_221, "unpaidRowExperts": 12, "withheldMicrocredits": 0,
        "pendingRowExperts": 230, "pendingMicrocredits": 312_400, "verifiedShare": 0.9931, "rateMicrocredits": 1480,
        "isQuarantined": False, "asOfMs": 0,
    },
}  # fmt: skip


def _problem(code: str) -> dict[str, object]:
    return {"code": code, "detail": "the values that went with it", "retryAtMs": 0}


STATES: dict[str, dict[str, Any]] = {
    "idle": _IDLE,
    "too_small": _IDLE | {"advice": _ADVICE | {"mostBytes": 64 * MIB, "boundBy": "mobile"}},
    "invited": _IDLE | {"phase": "failed", "problem": _problem("invite_needed")},
    "downloading": _RUNNING | {
        "activity": "downloading", "rewards": None,
        "download": {
            "layer": 30, "start": 40, "stop": 120, "doneBytes": 31 * MIB, "totalBytes": 70 * MIB, "bytesPerS": 8e5,
        },
    },
    "serving": _RUNNING,
    "paused": _RUNNING | {"phase": "paused", "pauseReason": "visitor"},
    "on_battery": _RUNNING | {"phase": "paused", "pauseReason": "battery"},
    "recovering": _RUNNING | {"phase": "recovering", "problem": _problem("gpu_lost")},
    "reload": _RUNNING | {"phase": "failed", "problem": _problem("reload_needed")},
    "leaving": _RUNNING | {"phase": "leaving"},
    "elsewhere": _IDLE | {"phase": "elsewhere"},
    "unsupported": _IDLE | {"phase": "unsupported", "problem": _problem("unsupported")},
}  # fmt: skip


def stand_in(state: str) -> str:
    """A worker's script that publishes this state once, and after a command says which it was."""
    return f"""
        const state = {json.dumps(STATES[state])};
        postMessage({{ type: "state", state }});
        const say = (detail) => {{
            const problem = {{ code: "defect", detail, retryAtMs: 0 }};
            postMessage({{ type: "state", state: {{ ...state, problem }} }});
        }};
        onmessage = ({{ data }}) => {{
            const {{ type, id }} = data;
            if (type === "recoveryKey") postMessage({{ type, id, accountKey: "kva-of-this-test" }});
            else if (!["inspect", "surroundings", "woke"].includes(type)) say(JSON.stringify(data));
        }};
    """
