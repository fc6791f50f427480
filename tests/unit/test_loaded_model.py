"""A model file opened for serving: what reaches its parts."""

from __future__ import annotations

from pathlib import Path

from backbone.engine.serving.loaded_model import Arithmetic, KernelChoice, LoadedModel
from kvasir.kernels.kx1 import KX1Kernel
from tests.unit.engine_service import tiny_model


def test_the_thread_count_reaches_the_experts(tmp_path: Path) -> None:
    path = tiny_model(tmp_path)
    for choice in (KernelChoice.AUTO, KernelChoice.KX1):
        with LoadedModel.open(path, n_slot=1, n_threads=1, arithmetic=Arithmetic(kernel=choice)) as loaded:
            kernel = loaded.store.kernel
        assert isinstance(kernel, KX1Kernel)
        assert kernel.n_threads == 1
