"""Several slices as one: the same bits as one slice of the same experts, and nothing that does not fit together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvasir.errors import ConfigError, KernelError
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import plan_slice, write_slice
from kvasir.worker.serving.holdings import join_holdings, open_holdings
from tests.unit.moe_files import ModelSpec, write_model

SPEC = ModelSpec(n_layer=2, n_expert=6)
PIECES = ((ExpertRange(0, 0, 2),), (ExpertRange(0, 2, 4),), (ExpertRange(0, 5, 6), ExpertRange(1, 0, 6)))


def cut(directory: Path, name: str, *ranges: ExpertRange, spec: ModelSpec = SPEC) -> Path:
    model, path = directory / f"model-{spec.seed}.gguf", directory / name
    if not model.exists():
        write_model(model, spec)
    with GGUFIndex.open(model) as index:
        write_slice(plan_slice(index, ModelCard.from_index(index), ranges), path)
    return path


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_pieces_compute_what_one_slice_computes(tmp_path: Path, order: tuple[int, ...]) -> None:
    paths = [cut(tmp_path, f"{number}.gguf", *PIECES[number]) for number in order]
    whole = open_holdings(cut(tmp_path, "whole.gguf", *(item for ranges in PIECES for item in ranges)), "float", 1)
    joined = join_holdings(paths, "float", 1)
    assert joined.ranges == whole.ranges
    assert joined.n_experts == whole.n_experts == 11
    assert joined.slice_bytes == sum(path.stat().st_size for path in paths)
    rows = whole.kernel.encode_rows(np.random.default_rng(1).standard_normal((3, SPEC.d_model), dtype=np.float32))
    pair_rows = np.array([0, 1, 2, 0, 1], np.int32)
    for layer, ids in ((0, [4, 0, 2, 3, 1]), (1, [5, 0, 3, 3, 1])):
        pair_ids = np.array(ids, np.int32)
        expected = whole.layers[layer].compute(rows, pair_rows, pair_ids)
        assert np.array_equal(joined.layers[layer].compute(rows, pair_rows, pair_ids), expected)
        assert joined.layers[layer].n_expert == whole.layers[layer].n_expert


@pytest.mark.parametrize("local_id", [-1, 4])
def test_an_id_that_does_not_exist_is_refused(tmp_path: Path, local_id: int) -> None:
    joined = join_holdings([cut(tmp_path, f"{n}.gguf", *PIECES[n]) for n in (0, 1)], "float", 1)
    rows = joined.kernel.encode_rows(np.ones((1, SPEC.d_model), np.float32))
    with pytest.raises(KernelError, match="local id"):
        joined.layers[0].compute(rows, np.zeros(1, np.int32), np.array([local_id], np.int32))


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    first = cut(tmp_path, "a.gguf", ExpertRange(0, 0, 3))
    with pytest.raises(ConfigError, match="these slices share experts"):
        join_holdings([first, cut(tmp_path, "b.gguf", ExpertRange(0, 2, 4))], "float", 1)
    with pytest.raises(ConfigError, match="was cut from model"):
        other = ModelSpec(n_layer=2, n_expert=6, seed=1, data_changed_in="")
        join_holdings([first, cut(tmp_path, "c.gguf", ExpertRange(1, 0, 3), spec=other)], "float", 1)
    with pytest.raises(ConfigError, match="overlap in their order"):
        outer = cut(tmp_path, "d.gguf", ExpertRange(1, 0, 1), ExpertRange(1, 2, 3))
        join_holdings([outer, cut(tmp_path, "e.gguf", ExpertRange(1, 1, 2))], "float", 1)
