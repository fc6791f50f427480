"""Which kernel the registry gives: by name, by what the experts need, and by KVASIR_ISA."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant

from kvasir.errors import ConfigError, KernelError
from kvasir.experts import ExpertStack, LayerExperts, row_bytes
from kvasir.kernels import float_kernel, native, registry
from kvasir.kernels.float_kernel import FloatKernel
from kvasir.kernels.isa import NATIVE_ISAS, wanted_isa
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.kernels.oracle.kernel import NumpyKX1Kernel


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("KVASIR_ISA", raising=False)
    registry._made.cache_clear()
    yield
    registry._made.cache_clear()


def layer_of(quant_type: Quant, width: int = 256) -> LayerExperts:
    stack = ExpertStack(quant_type, width, width, np.zeros((1, width * row_bytes(quant_type, width)), np.uint8))
    return LayerExperts(3, stack, stack, stack)


def test_kx1_is_the_native_build_when_there_is_one() -> None:
    assert isinstance(registry.kernel_named("kx1"), KX1Kernel)
    assert registry.kernel_named("kx1") is registry.kernel_named("kx1")


def test_float_is_the_float_kernel() -> None:
    assert isinstance(registry.kernel_named("float"), FloatKernel)


def test_a_thread_count_gives_a_kernel_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = registry.kernel_named("kx1", 1), registry.kernel_for([layer_of(Quant.Q8_0)], 2)
    assert isinstance(one, KX1Kernel) and isinstance(two, KX1Kernel)
    assert (one.n_threads, two.n_threads) == (1, 2)
    assert registry.kernel_named("kx1", 1) is one
    asked: list[int | None] = []
    monkeypatch.setattr(float_kernel, "row_ops", asked.append)
    registry.kernel_named("float", 3)
    assert asked == [3]


def test_without_a_native_build_kx1_is_numpy_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    with caplog.at_level(logging.WARNING):
        kernel = registry.kernel_named("kx1")
        registry.kernel_named("kx1")
    assert isinstance(kernel, NumpyKX1Kernel)
    assert len(caplog.records) == 1
    assert "times slower" in caplog.text
    assert "python -m kvasir.kernels.build" in caplog.text


def test_numpy_can_be_forced_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVASIR_ISA", "numpy")
    assert isinstance(registry.kernel_named("kx1"), NumpyKX1Kernel)
    assert not caplog.records


@pytest.mark.parametrize("isa", native.load().isa_names)
def test_a_native_build_can_be_forced(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("KVASIR_ISA", isa)
    kernel = registry.kernel_named("kx1")
    assert isinstance(kernel, KX1Kernel)
    assert kernel.isa_name == isa


def test_a_build_of_another_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(name for name in NATIVE_ISAS if name not in native.load().isa_names)
    monkeypatch.setenv("KVASIR_ISA", other)
    with pytest.raises(ConfigError, match=other):
        registry.kernel_named("kx1")


@pytest.mark.parametrize("name", ["kx1", "float"])
def test_an_unknown_isa_is_refused_with_variable_and_value(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("KVASIR_ISA", "sse9")
    with pytest.raises(ConfigError, match=r"KVASIR_ISA is 'sse9'; it must be one of scalar, avx2"):
        registry.kernel_named(name)


def test_an_empty_isa_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_ISA", "")
    assert wanted_isa() is None


def test_an_unknown_kernel_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="kernel 'kx2' is unknown; it must be one of kx1, float"):
        registry.kernel_named("kx2")


def test_experts_get_kx1_only_when_it_can_compute_all_of_them() -> None:
    good, other = layer_of(Quant.Q8_0), layer_of(Quant.F16)
    assert registry.kernel_for([good, good]).name == "kx1"
    assert registry.kernel_for(iter([good, other])).name == "float"
    assert registry.kernel_for([layer_of(Quant.Q8_0, 96)]).name == "float"
    assert registry.kernel_for([]).name == "kx1"


def test_experts_that_no_kernel_computes_are_refused_with_all_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FloatKernel, "refusal", lambda self, experts: "layer 3 is odd")
    with pytest.raises(KernelError, match=r"kx1: layer 3: gate is F16.*float: layer 3 is odd"):
        registry.kernel_for([layer_of(Quant.F16)])
