"""The contributing tab, part by part, under node: its slices, its agent, its edges, its kernel that comes back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_ranges import parse_ranges
from kvasir.slicing.manifest import Manifest
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_file import SliceFile
from kvasir.slicing.slices import plan_slice
from relay.slices.manifests import manifest_answer
from relay.slices.planning import SliceShelf
from tests.browser.node_tests import run_node_tests
from tests.unit.moe_files import ModelSpec, write_model

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


LAYOUTS = {
    "plain": ModelSpec(),
    "fused": ModelSpec(is_fused=True),
    "biased": ModelSpec(has_bias=True),
    "fused_biased": ModelSpec(is_fused=True, has_bias=True),
}


def write_layout(directory: Path, name: str) -> None:
    """A slice of a small model in this layout, and digests of its experts' matrices as Python reads them."""
    model = write_model(directory / f"{name}-model.gguf", LAYOUTS[name])
    path = directory / f"{name}.gguf"
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
        plan = plan_slice(index, card, parse_ranges("0:1-3,2:0-1,2:4-6"))
        path.write_bytes(b"".join(plan.read()))
    with SliceFile.open(path) as held:
        digests = Manifest.of_slice(held).experts
        found = []
        for key in sorted(digests):
            experts, local_id = held.layers[key.layer], held.local_id(key.layer, key.expert)
            stacks = {"gate": experts.gate, "up": experts.up, "down": experts.down}
            found.append(
                {"key": f"{key.layer}/{key.expert}", "all": digests[key].sha256, "has_bias": experts.has_bias}
                | {role: hashlib.sha256(stack.data[local_id]).hexdigest() for role, stack in stacks.items()}
                | {"types": [stack.quant_type.name for stack in stacks.values()]}
            )
        content = {"fingerprint": held.model_fingerprint, "experts": found}
    (directory / f"{name}.json").write_text(json.dumps(content))


def test_where_experts_lie_in_every_layout(tmp_path: Path) -> None:
    for name in LAYOUTS:
        write_layout(tmp_path, name)
    run_node_tests("slice_layouts.test.mjs", len(LAYOUTS), environment={"LAYOUTS": str(tmp_path)})


def test_the_agent_of_a_tab() -> None:
    run_node_tests("tab_agent.test.mjs", 11)


def test_the_small_parts_of_a_tab() -> None:
    run_node_tests("tab_parts.test.mjs", 11)
