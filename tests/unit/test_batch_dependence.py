"""The benchmarks' check that a sequence's bits do not depend on its batch: it finds a dense path whose bits do."""

from __future__ import annotations

from pathlib import Path

from backbone.engine.serving.loaded_model import Dense, LoadedModel
from benchmarks.shape.batch_dependence import is_batch_invariant
from benchmarks.shape.layout import QUICK as QUICK_SHAPE
from benchmarks.shape.model import write_real_shape


def test_a_batch_that_changes_bits_is_found(tmp_path: Path) -> None:
    path = write_real_shape(tmp_path / "model.gguf", QUICK_SHAPE)
    for dense in (Dense.KX1, Dense.FLOAT):
        with LoadedModel.open(path, n_slot=8, n_ctx=64, n_threads=1, dense=dense) as loaded:
            assert is_batch_invariant(loaded, 8) is (dense is Dense.KX1)
