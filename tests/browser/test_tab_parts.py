"""The contributing tab, part by part, under node: its slices, its agent, its edges, its kernel that comes back."""

from __future__ import annotations

import json
from pathlib import Path

from kvasir.gguf_index import GGUFIndex
from kvasir.manifest import Manifest
from kvasir.model_card import ModelCard
from relay.slice_manifests import manifest_answer
from relay.slice_planning import SliceShelf
from tests.browser.node_tests import run_node_tests

DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "kvasir-demo-moe.q4_k_m.gguf"
EXPERTS = "0:0-2,2:4-6,2:9-10"


def write_slice(directory: Path) -> None:
    """A slice of the demo model as the site serves it, its manifest, and what a test wants to know of it."""
    with GGUFIndex.open(DEMO_MODEL) as index:
        fingerprint = ModelCard.from_index(index).fingerprint
    planned = SliceShelf(DEMO_MODEL).planned(fingerprint, EXPERTS)
    card, plan = planned.model.card, planned.plan
    manifest = Manifest.of_model(planned.model.index, card, plan.ranges)
    (directory / "slice.gguf").write_bytes(b"".join(plan.read()))
    (directory / "manifest.json").write_bytes(
        manifest_answer(planned, manifest, "https://elsewhere.example/model.gguf")
    )
    layer = card.moe_layer(0)
    facts = {
        "etag": planned.etag,
        "fingerprint": card.fingerprint,
        "ranges": [[item.layer, item.start, item.stop] for item in plan.ranges],
        "experts": [[key.layer, key.expert] for key in sorted(manifest.experts)],
        "expert_bytes": sum(digest.n_bytes for digest in manifest.experts.values()),
        "d_model": card.d_model,
        "d_ff": card.d_ff,
        "types": {"gate": layer.gate_type.name, "up": layer.up_type.name, "down": layer.down_type.name},
    }
    (directory / "facts.json").write_text(json.dumps(facts))


def test_the_slice_store(tmp_path: Path) -> None:
    write_slice(tmp_path)
    run_node_tests("slice_store.test.mjs", 14, environment={"SLICE": str(tmp_path)})


def test_the_agent_of_a_tab() -> None:
    run_node_tests("tab_agent.test.mjs", 11)


def test_the_small_parts_of_a_tab() -> None:
    run_node_tests("tab_parts.test.mjs", 11)
