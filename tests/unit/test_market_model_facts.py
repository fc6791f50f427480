"""What the market trades of a model file: true bytes by layer, nothing of dense layers and multi-token prediction."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from django.test import override_settings
from gguf import GGMLQuantizationType as QuantType

from kvasir.experts import ExpertRange
from kvasir.slicing.slices import plan_slice
from market.coverage.model_facts import ModelFacts, open_model, site_model
from market.coverage.scarcity import Budget, choose
from market.coverage.targets import first_targets
from market.errors import MarketError
from market.settings import TargetBounds
from tests.unit.moe_files import ModelSpec, write_model

SPEC = ModelSpec(
    n_layer=4, n_mtp_layer=1, dense_layers=(0,), n_expert=6, d_model=256, d_ff=256,
    gate_type=QuantType.Q4_0, down_types=(QuantType.Q4_0, QuantType.Q8_0),
)  # fmt: skip


def test_it_works(tmp_path: Path) -> None:
    model = open_model(write_model(tmp_path / "m.gguf", SPEC), "the-site's-name")
    facts = model.facts
    assert (facts.n_layer, facts.n_expert, facts.d_model, facts.d_ff) == (4, 6, 256, 256)
    assert facts.moe_layers == (1, 2, 3)
    assert facts.expert_bytes[0] == 0
    assert facts.expert_bytes[1] > facts.expert_bytes[2]  # Q8_0 down, Q4_0 down
    assert facts.is_called("the-site's-name") and facts.is_called("tiny") and facts.is_called(model.card.fingerprint)
    assert not facts.is_called("other")


def test_bytes_are_those_that_a_slice_carries(tmp_path: Path) -> None:
    model = open_model(write_model(tmp_path / "m.gguf", SPEC))
    for layer in model.facts.moe_layers:
        item = ExpertRange(layer, 1, 4)
        plan = plan_slice(model.index, model.card, [item])
        assert sum(piece.n_bytes for piece in plan.byte_ranges) == model.facts.range_bytes(item)


def test_neither_dense_layers_nor_multi_token_prediction_are_ever_offered(tmp_path: Path) -> None:
    facts = open_model(write_model(tmp_path / "m.gguf", SPEC)).facts
    replicas = np.zeros((facts.n_layer, facts.n_expert), int)
    targets = first_targets(facts.bytes_by_layer > 0, facts.n_expert, TargetBounds(2, 2))
    offered = set()
    while (offer := choose(replicas, targets, facts.bytes_by_layer, Budget(n_experts=4))) is not None:
        offered.add(offer.range.layer)
        replicas[offer.range.layer, offer.range.start : offer.range.stop] += 1
    assert offered == {1, 2, 3}
    assert (replicas == targets).all()


@pytest.mark.parametrize(
    ("down_types", "kernel"),
    [((QuantType.Q8_0,), "kx1"), ((QuantType.F32,), "float"), ((QuantType.Q8_0, QuantType.F32), "float")],
)
def test_the_kernel_is_the_one_that_the_backbone_has_for_all_layers(
    tmp_path: Path, down_types: tuple[QuantType, ...], kernel: str
) -> None:
    spec = ModelSpec(d_model=256, d_ff=256, gate_type=QuantType.Q8_0, down_types=down_types)
    assert set(open_model(write_model(tmp_path / "m.gguf", spec)).facts.kernels) == {kernel}


def test_the_sites_model_is_opened_once_and_its_absence_is_said(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SPEC)
    with override_settings(KVASIR_SERVICE=SimpleNamespace(model=path, model_name="here")):
        assert site_model() is site_model()
        assert site_model().facts.name == "here"
    missing = SimpleNamespace(model=tmp_path / "none.gguf", model_name="none")
    with override_settings(KVASIR_SERVICE=missing), pytest.raises(MarketError, match=r"none\.gguf") as refused:
        site_model()
    assert (refused.value.status, refused.value.code) == (503, "no_model")


def test_sizes_and_layers_must_agree() -> None:
    with pytest.raises(Exception, match="1 expert sizes for 2 layers"):
        ModelFacts("m", "f" * 64, 2, 4, 64, 32, (10,))
