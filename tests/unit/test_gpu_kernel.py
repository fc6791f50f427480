"""The GPU kernel beyond its bits: long calls, little memory, threads, a device that fails, and how it is chosen.

The device is Mesa's lavapipe; the bits themselves are tests/contract/test_kx1_gpu_golden.py's.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant

from kvasir.errors import ConfigError, KernelError
from kvasir.experts import ExpertStack, LayerExperts
from kvasir.kernels import registry
from kvasir.kernels.api import EncodedRows, LoadedExperts, Pairs
from kvasir.kernels.backend import CPU, Backend, wants_software
from kvasir.kernels.gpu import kernel as gpu
from kvasir.kernels.gpu import shaders as gpu_shaders
from kvasir.kernels.gpu import tunables as gpu_tunables
from kvasir.kernels.gpu.device import GpuDevice, GpuError, open_device
from kvasir.kernels.gpu.kernel import GpuKX1Kernel
from kvasir.kernels.gpu.or_cpu import NEVER, GpuOrCpuKernel, crossover
from kvasir.kernels.gpu.tables import Tunables
from kvasir.kernels.gpu.weights import expert_bytes
from kvasir.kernels.kx1 import KX1Kernel
from kvasir.kernels.selftest_inputs import made_weights, plain_rows
from kvasir.worker.command_line import parse_arguments, parse_command
from kvasir.worker.serving.kernel_choice import choose_kernel, kernel_facts

D_MODEL, D_FF, N_EXPERT = 256, 256, 5


def made_layer(layer: int = 0) -> LayerExperts:
    def stack(quant_type: Quant, n_out: int, n_in: int, seed: int) -> ExpertStack:
        data = [made_weights(quant_type, n_out, n_in, seed + expert) for expert in range(N_EXPERT)]
        return ExpertStack(quant_type, n_out, n_in, np.stack(data))

    seed = 100 * layer
    gate, up = stack(Quant.Q4_K, D_FF, D_MODEL, seed), stack(Quant.Q5_K, D_FF, D_MODEL, seed + 20)
    return LayerExperts(layer, gate, up, stack(Quant.Q6_K, D_MODEL, D_FF, seed + 40))


class Call:
    """Rows and pairs in no order, and what the CPU gives for them."""

    def __init__(self, experts: LayerExperts, cpu: KX1Kernel, n_rows: int, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.rows: EncodedRows = cpu.encode_rows(plain_rows(n_rows, D_MODEL, seed))
        self.pair_rows: Pairs = rng.integers(0, n_rows, 3 * n_rows).astype(np.int32)
        self.pair_ids: Pairs = rng.integers(0, N_EXPERT, 3 * n_rows).astype(np.int32)
        self.wanted = self.run(cpu.load(experts))

    def run(self, loaded: LoadedExperts) -> bytes:
        return loaded.compute(self.rows, self.pair_rows, self.pair_ids).tobytes()


@pytest.fixture(scope="module")
def device() -> GpuDevice:
    return open_device(software=True)


@pytest.fixture(scope="module")
def cpu() -> KX1Kernel:
    return KX1Kernel(n_threads=1)


@pytest.fixture
def kernel(device: GpuDevice, cpu: KX1Kernel) -> GpuKX1Kernel:
    return GpuKX1Kernel(device, cpu)


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry._made.cache_clear()
    yield
    registry._made.cache_clear()


# -- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_pairs", [1, 7, 1024])
def test_a_call_of_any_length_gives_every_pair_its_output(
    kernel: GpuKX1Kernel, cpu: KX1Kernel, monkeypatch: pytest.MonkeyPatch, most_pairs: int
) -> None:
    monkeypatch.setattr(gpu, "MOST_PAIRS", most_pairs)
    experts = made_layer()
    loaded = kernel.load(experts)
    for n_rows in (1, 13, 2):
        call = Call(experts, cpu, n_rows, seed=n_rows)
        assert call.run(loaded) == call.wanted


def test_no_pairs_give_no_outputs(kernel: GpuKX1Kernel) -> None:
    none = np.zeros(0, np.int32)
    loaded = kernel.load(made_layer(3))
    assert loaded.compute(np.zeros((0, 261), np.uint8), none, none).shape == (0, D_MODEL)
    assert (loaded.layer, loaded.n_expert, loaded.d_model) == (3, N_EXPERT, D_MODEL)


def test_what_does_not_exist_is_refused_before_anything_is_computed(kernel: GpuKX1Kernel, cpu: KX1Kernel) -> None:
    loaded = kernel.load(made_layer())
    rows = cpu.encode_rows(plain_rows(2, D_MODEL, 1))
    one = np.zeros(1, np.int32)
    for bad_rows, bad_ids, words in (
        (one + 2, one, "row number 2 does not exist"),
        (one, one + N_EXPERT, f"local expert id {N_EXPERT}"),
        (one - 1, one, "row number -1"),
        (one, np.zeros(2, np.int32), "1 pair_rows but 2 pair_ids"),
    ):
        with pytest.raises(KernelError, match=words):
            loaded.compute(rows, bad_rows, bad_ids)
    with pytest.raises(KernelError, match=r"uint8 \[n, 261\]"):
        loaded.compute(rows[:, :-1], one, one)
    assert kernel.weights.n_uploads == 0


def test_a_scale_that_is_not_finite_names_its_matrix(kernel: GpuKX1Kernel, cpu: KX1Kernel) -> None:
    experts = made_layer(6)
    experts.down.data[2, 208:210] = (0x00, 0x7C)  # an infinite d
    loaded = kernel.load(experts)
    rows, one = cpu.encode_rows(plain_rows(1, D_MODEL, 1)), np.zeros(1, np.int32)
    with pytest.raises(KernelError, match="layer 6, local expert 2, down"):
        loaded.compute(rows, one, one + 2)
    assert loaded.compute(rows, one, one + 1).shape == (1, D_MODEL)


def test_threads_take_turns(kernel: GpuKX1Kernel, cpu: KX1Kernel) -> None:
    layers = [made_layer(number) for number in range(3)]
    calls = [Call(experts, cpu, 9, seed=number) for number, experts in enumerate(layers)]
    loaded = [kernel.load(experts) for experts in layers]
    same: list[bool] = []

    def work(number: int) -> None:
        same.extend(calls[number].run(loaded[number]) == calls[number].wanted for _ in range(4))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert same == [True] * 12


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [1, 2, 3])
def test_experts_take_turns_in_little_memory(device: GpuDevice, cpu: KX1Kernel, room: int) -> None:
    experts = made_layer()
    kernel = GpuKX1Kernel(device, cpu, max_bytes=room * (expert_bytes(experts) + 255) // 256 * 256)
    loaded = kernel.load(experts)
    for seed in range(3):
        call = Call(experts, cpu, 8, seed)
        assert call.run(loaded) == call.wanted
        assert kernel.weights.held_bytes <= room * (expert_bytes(experts) + 256)
    assert kernel.weights.n_uploads > N_EXPERT


def test_experts_that_fit_are_uploaded_once(kernel: GpuKX1Kernel, cpu: KX1Kernel) -> None:
    experts = made_layer()
    loaded = kernel.load(experts)
    for seed in range(3):
        Call(experts, cpu, 8, seed).run(loaded)
    assert kernel.weights.n_uploads == N_EXPERT


def test_memory_for_less_than_one_expert_is_an_error_that_says_so(device: GpuDevice, cpu: KX1Kernel) -> None:
    experts = made_layer()
    loaded = GpuKX1Kernel(device, cpu, max_bytes=4096).load(experts)
    with pytest.raises(GpuError, match="allow more"):
        loaded.compute(cpu.encode_rows(plain_rows(1, D_MODEL, 1)), np.zeros(1, np.int32), np.zeros(1, np.int32))


def test_a_layer_that_nobody_holds_any_more_gives_its_memory_back(kernel: GpuKX1Kernel, cpu: KX1Kernel) -> None:
    experts, other = made_layer(0), made_layer(1)
    loaded = kernel.load(experts)
    Call(experts, cpu, 8).run(loaded)
    before = kernel.weights.held_bytes
    del loaded
    gc.collect()
    Call(other, cpu, 8).run(kernel.load(other))
    assert kernel.weights.held_bytes == before


def test_an_expert_that_no_binding_can_hold_is_refused(
    kernel: GpuKX1Kernel, cpu: KX1Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = made_layer()
    monkeypatch.setattr(kernel.device, "arena_bytes", 1024)
    with pytest.raises(KernelError, match="this GPU can bind 1024"):
        kernel.load(experts)
    both = GpuOrCpuKernel(kernel, cpu, is_measured=False)
    call = Call(experts, cpu, 4)
    assert call.run(both.load(experts)) == call.wanted  # on the CPU


# -- which of the two ------------------------------------------------------------------------------------------------


def test_the_gpu_gets_the_sizes_from_which_it_is_always_faster() -> None:
    sizes = (1, 4, 16, 64)
    assert crossover(sizes, (1, 1, 1, 1), (2, 2, 2, 2)) == 1
    assert crossover(sizes, (9, 9, 1, 1), (2, 2, 2, 2)) == 16
    assert crossover(sizes, (1, 9, 1, 1), (2, 2, 2, 2)) == 16
    assert crossover(sizes, (1, 1, 1, 9), (2, 2, 2, 2)) == NEVER


def test_calls_are_shared_out_by_their_size(kernel: GpuKX1Kernel, cpu: KX1Kernel) -> None:
    def made_up(loaded: LoadedExperts, n_pairs: int) -> float:
        return 10.0 if isinstance(loaded, gpu.LoadedGpuExperts) else float(n_pairs)

    both = GpuOrCpuKernel(kernel, cpu, is_measured=True, time_call=made_up)
    experts = made_layer()
    loaded = both.load(experts)
    assert both.gpu_from == 16
    small, large = Call(experts, cpu, 2), Call(experts, cpu, 6)
    assert (small.run(loaded), both.n_gpu_calls, both.n_cpu_calls) == (small.wanted, 0, 1)
    assert (large.run(loaded), both.n_gpu_calls, both.n_cpu_calls) == (large.wanted, 1, 1)


def test_a_damaged_expert_is_not_measured_with_and_stops_nothing(kernel: GpuKX1Kernel, cpu: KX1Kernel) -> None:
    damaged = made_layer()
    damaged.gate.data[0, 0:2] = (0x00, 0x7C)  # an infinite d
    both = GpuOrCpuKernel(kernel, cpu, is_measured=True)
    loaded = both.load(damaged)
    assert both.gpu_from is None
    rows, one = cpu.encode_rows(plain_rows(1, D_MODEL, 1)), np.zeros(1, np.int32)
    assert loaded.compute(rows, one, one + 1).tobytes() == cpu.load(damaged).compute(rows, one, one + 1).tobytes()
    both.load(made_layer(1))
    assert both.gpu_from is not None


def test_a_device_that_fails_is_given_up_without_losing_an_answer(
    cpu: KX1Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    lost = open_device(software=True)
    both = GpuOrCpuKernel(GpuKX1Kernel(lost, cpu), cpu, is_measured=False)
    experts = made_layer()
    loaded = both.load(experts)
    call = Call(experts, cpu, 4)
    assert call.run(loaded) == call.wanted
    lost.close()
    with caplog.at_level(logging.WARNING):
        assert [call.run(loaded) for _ in range(3)] == [call.wanted] * 3
    assert (both.n_gpu_calls, both.n_cpu_calls) == (1, 3)
    assert len([record for record in caplog.records if "given up" in record.message]) == 1
    assert call.run(both.load(experts)) == call.wanted


def test_errors_of_the_caller_are_not_the_gpus(kernel: GpuKX1Kernel, cpu: KX1Kernel) -> None:
    both = GpuOrCpuKernel(kernel, cpu, is_measured=False)
    loaded = both.load(made_layer())
    with pytest.raises(KernelError, match="does not exist"):
        loaded.compute(np.ones((1, 261), np.uint8) * 17, np.ones(1, np.int32), np.ones(1, np.int32))
    assert both.gpu_from == 1


# -- tunables --------------------------------------------------------------------------------------------------------


class TimeTable:
    """Times that favour some lanes and tiles from some number of pairs."""

    def __init__(self, kernel: GpuKX1Kernel, lanes: int, tiled_from: int) -> None:
        self.kernel, self.lanes, self.tiled_from = kernel, lanes, tiled_from

    def __call__(self, loaded: LoadedExperts, n_pairs: int) -> float:
        mine = self.kernel.tunables
        is_tiled = n_pairs >= mine.tiled_from
        return abs(mine.lanes - self.lanes) + (1 if is_tiled == (n_pairs >= self.tiled_from) else 5)


@pytest.mark.parametrize(("lanes", "tiled_from"), [(1, 8), (4, 16), (16, 32), (4, 1000)])
def test_the_fastest_of_what_is_tried_is_chosen(kernel: GpuKX1Kernel, lanes: int, tiled_from: int) -> None:
    chosen = gpu_tunables.measure(kernel, TimeTable(kernel, lanes, tiled_from))
    assert chosen == Tunables(lanes, min(tiled_from, 128))
    kernel.set_tunables(Tunables())


def test_tunables_are_remembered_for_each_device(
    kernel: GpuKX1Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "deep" / "gpu_tunables.json"
    monkeypatch.setattr(gpu_tunables, "measure", lambda _: Tunables(4, 32))
    assert gpu_tunables.tune(kernel, memory) == Tunables(4, 32)
    monkeypatch.setattr(gpu_tunables, "measure", lambda _: pytest.fail("measured again"))
    assert gpu_tunables.tune(kernel, memory) == kernel.tunables == Tunables(4, 32)
    assert list(json.loads(memory.read_text())) == [kernel.device.name]


@pytest.mark.parametrize("content", ["", "[]", '{"NAME": 3}', '{"NAME": {"lanes": 3, "tiled_from": 8}}', "{"])
def test_a_damaged_memory_is_measured_anew(
    kernel: GpuKX1Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    memory = tmp_path / "gpu_tunables.json"
    memory.write_text(content.replace("NAME", kernel.device.name))
    monkeypatch.setattr(gpu_tunables, "measure", lambda _: Tunables(4, 32))
    assert gpu_tunables.tune(kernel, memory) == Tunables(4, 32)


def test_a_real_measurement_ends_in_something_that_can_be_used(kernel: GpuKX1Kernel, cpu: KX1Kernel) -> None:
    kernel.set_tunables(gpu_tunables.measure(kernel))
    call = Call(made_layer(), cpu, 16)
    assert call.run(kernel.load(made_layer())) == call.wanted


def test_memory_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert gpu_tunables.default_memory() == tmp_path / "kvasir" / "gpu_tunables.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert gpu_tunables.default_memory().parent == Path.home() / ".cache" / "kvasir"


# -- how it is asked for ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_registry")
def test_a_backend_with_a_gpu_has_the_same_name_fingerprint_and_bits(
    monkeypatch: pytest.MonkeyPatch, cpu: KX1Kernel
) -> None:
    monkeypatch.setenv("KVASIR_SOFTWARE_GPU", "1")
    experts = made_layer()
    chosen = choose_kernel("auto", [experts], 1, Backend("gpu", 64 << 20))
    assert isinstance(chosen, GpuOrCpuKernel)
    assert (chosen.name, chosen.fingerprint, chosen.row_format) == ("kx1", cpu.fingerprint, cpu.row_format)
    assert "llvmpipe" in kernel_facts(chosen, 1).build and kernel_facts(chosen, 1).n_threads == 1
    call = Call(experts, cpu, 4)
    assert call.run(chosen.load(experts)) == call.wanted
    assert chosen.n_gpu_calls == 1
    assert registry.kernel_named("kx1", 1, Backend("gpu", 64 << 20)) is chosen


@pytest.mark.usefixtures("fresh_registry")
@pytest.mark.parametrize("value", ["", "0"])
def test_a_software_gpu_is_never_used_unasked(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KVASIR_SOFTWARE_GPU", value)
    monkeypatch.setattr("kvasir.kernels.gpu.device.ADAPTER_ORDER", ("no such kind",))  # wherever this test runs
    assert not wants_software()
    assert isinstance(registry.kernel_named("kx1", 1, Backend("auto")), KX1Kernel)
    with pytest.raises(ConfigError, match=r"--backend gpu: there is no GPU with .* adapters found: .*llvmpipe"):
        registry.kernel_named("kx1", 1, Backend("gpu"))


def test_an_odd_value_of_the_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_SOFTWARE_GPU", "yes")
    with pytest.raises(ConfigError, match="KVASIR_SOFTWARE_GPU is 'yes'"):
        wants_software()


@pytest.mark.usefixtures("fresh_registry")
def test_without_wgpu_the_next_step_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(ConfigError, match=r"pip install kvasir\[gpu\]"):
        registry.kernel_named("kx1", 1, Backend("gpu"))
    assert isinstance(registry.kernel_named("kx1", 1, Backend("auto")), KX1Kernel)


@pytest.mark.usefixtures("fresh_registry")
def test_the_float_kernel_stays_on_the_cpu() -> None:
    assert registry.kernel_named("float", 1, Backend("auto")) is registry.kernel_named("float", 1)
    with pytest.raises(ConfigError, match="--backend gpu computes with kernel kx1, not float"):
        registry.kernel_named("float", 1, Backend("gpu"))


def test_a_device_that_fails_the_self_test_with_packed_dots_is_tried_without(
    device: GpuDevice, cpu: KX1Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = gpu_shaders.shader_file("dot_packed")
    wrong = honest.replace("dot4I8Packed(a, b)", "dot4I8Packed(a, b & 0x7fffffffu)")
    assert wrong != honest
    files = gpu_shaders.shader_file
    monkeypatch.setattr(gpu_shaders, "shader_file", lambda name: wrong if name == "dot_packed" else files(name))
    device.use(1, has_packed_dot=False)  # forgets what is compiled
    device.use(4, has_packed_dot=True)
    try:
        kernel = GpuKX1Kernel(device, cpu)
        assert kernel.fingerprint == cpu.fingerprint
        assert not device.has_packed_dot
    finally:
        device.use(4, has_packed_dot=True)


def test_tiles_are_tested_even_where_they_are_not_used_yet(
    device: GpuDevice, cpu: KX1Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = gpu_shaders.shader_file
    wrong = files("tiled").replace("const STEP = 8u;", "const STEP = 7u;")
    assert wrong != files("tiled")
    monkeypatch.setattr(gpu_shaders, "shader_file", lambda name: wrong if name == "tiled" else files(name))
    device.use(1, has_packed_dot=False)
    device.use(4, has_packed_dot=True)
    try:
        with pytest.raises(KernelError, match="kx1 failed its self-test"):
            _ = GpuKX1Kernel(device, cpu, tunables=Tunables(tiled_from=1 << 30)).fingerprint
    finally:
        device.use(1, has_packed_dot=True)
        device.use(4, has_packed_dot=True)


def test_a_device_that_is_wrong_in_any_way_is_refused(
    device: GpuDevice, cpu: KX1Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = gpu_shaders.shader_file
    wrong = files("exact").replace("0x7f7fffffu", "0x7f7ffffeu")  # the largest finite value
    assert wrong != files("exact")
    monkeypatch.setattr(gpu_shaders, "shader_file", lambda name: wrong if name == "exact" else files(name))
    device.use(1, has_packed_dot=False)
    device.use(4, has_packed_dot=True)
    try:
        with pytest.raises(KernelError, match=r"kx1 failed its self-test: .* have digest"):
            _ = GpuKX1Kernel(device, cpu).fingerprint
    finally:
        device.use(1, has_packed_dot=True)
        device.use(4, has_packed_dot=True)


def test_the_command_line_says_on_what_to_compute(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.touch()
    serve = ["serve", "--slice", str(path)]
    assert parse_arguments(serve).kernel.backend == CPU
    assert parse_arguments([*serve, "--backend", "auto"]).kernel.backend == Backend("auto")
    assert parse_arguments([*serve, "--backend", "gpu", "--gpu-memory", "2GiB"]).kernel.backend == Backend(
        "gpu", 2 << 30
    )
    join = parse_command(["join", "https://kvasir.example.org", "--budget", "2GiB", "--backend", "gpu"])
    assert join.kernel.backend == Backend("gpu")
    with pytest.raises(ConfigError, match="--gpu-memory 2GiB needs --backend"):
        parse_arguments([*serve, "--gpu-memory", "2GiB"])
    with pytest.raises(ConfigError, match="backend 'tpu'"):
        Backend("tpu")
