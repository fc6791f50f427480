"""Where the dense path computes: what is refused, what "auto" means, and that nothing of a forward is left on the CPU.

No CUDA device is needed: torch's "meta" device has shapes without values and refuses to mix with the CPU, so a
forward that runs on it has put every tensor where it belongs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.model.batch import Batch, SlotTokens
from backbone.engine.model.model import Model
from backbone.engine.ops.devices import CPU, Device, torch_device
from backbone.engine.ops.interface import Linear
from backbone.engine.ops.torch_ops import TorchOps
from backbone.engine.serving.loaded_model import Dense, LoadedModel, make_ops
from backbone.engine.serving.sum_calibration import sum_scale_of
from backbone.engine.swarm.transport import NoWorkers
from backbone.process.served_model import directory_entry, open_model
from backbone.service_settings import ServiceSettings
from kvasir.errors import ConfigError
from kvasir.experts import WeightMatrix
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.gpu.or_cpu import GpuOrCpuKernel
from tests.oracles.model_runs import run_chunks, torch_oracle
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import ARCHITECTURES, TinyShape

SHAPE = TinyShape(n_layer=2, n_expert=4, n_used=2)
META = torch.device("meta")


@pytest.fixture
def has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def has_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("has_cuda")
def test_auto_takes_cuda_but_never_for_the_exact_path() -> None:
    assert torch_device(Device.AUTO, is_exact=False).type == "cuda"
    assert torch_device(Device.AUTO, is_exact=True) == CPU
    assert torch_device(Device.CUDA, is_exact=False).type == "cuda"
    assert torch_device(Device.CPU, is_exact=False) == CPU
    with pytest.raises(ConfigError, match=r"kx1, computes on the CPU only.*`fast`.*`float`"):
        torch_device(Device.CUDA, is_exact=True)


@pytest.mark.usefixtures("has_no_cuda")
@pytest.mark.parametrize(
    ("built_for", "said"), [(None, "is a build without CUDA"), ("12.8", "built for CUDA 12.8, finds no device")]
)
def test_a_missing_cuda_is_named_with_what_is_there(
    built_for: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    with pytest.raises(ConfigError, match=rf"torch {torch.__version__.split('+')[0]}.*{said}; `cpu` computes without"):
        torch_device(Device.CUDA, is_exact=False)
    assert torch_device(Device.AUTO, is_exact=False) == CPU


@pytest.mark.usefixtures("has_no_cuda")
def test_a_model_is_not_opened_without_its_device(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", TinyModel("qwen3moe", "Q4_K", shape=SHAPE))
    with pytest.raises(ConfigError, match="CUDA is asked for"):
        LoadedModel.open(path, n_slot=1, dense=Dense.FLOAT, device=Device.CUDA)


@pytest.mark.usefixtures("has_no_cuda")
@pytest.mark.parametrize(("device", "reason"), [(Device.CPU, "KVASIR_DEVICE is cpu"), (Device.AUTO, "torch ")])
def test_the_fast_dense_path_is_refused_on_a_cpu(device: Device, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"^KVASIR_DENSE=fast needs.*{reason}.*; set KVASIR_DENSE=kx1$"):
        make_ops(Dense.FAST, 1, device)


def test_the_fingerprint_and_the_scale_of_sums_name_the_dense_path(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", TinyModel("qwen3moe", "Q4_K", shape=SHAPE))
    fingerprints, suffixes = set(), []
    for dense in ("float", "kx1"):
        settings = ServiceSettings(path, "m", n_slot=1, n_ctx=64, n_threads=1, dense=dense)
        with open_model(settings) as loaded:
            fingerprints.add(directory_entry(settings, loaded, None, has_chat=False).fingerprint)
            sum_scale_of(loaded, tmp_path / "sums")
            kept = {file.stem.removeprefix(loaded.card.fingerprint) for file in (tmp_path / "sums").iterdir()}
            suffixes.append(kept)
    assert len(fingerprints) == 2
    assert suffixes == [{"-float-float32-on-cpu"}, {"-float-float32-on-cpu", ""}]


@pytest.mark.usefixtures("has_cuda")
def test_what_computes_on_cuda() -> None:
    fast, plain = (make_ops(dense, 1, Device.AUTO) for dense in (Dense.FAST, Dense.FLOAT))
    assert fast.name == "float: bfloat16 and float32 on cuda"
    assert plain.name == "float: float32 on cuda"
    assert make_ops(Dense.FLOAT, 1).name == "float: float32 on cpu"
    for ops in (fast, plain):
        assert ops.device.type == "cuda" and ops.dtype is torch.float32 and not ops.is_batch_stable


class RecordedOps(TorchOps):
    """Keeps the matrices that it made: "meta" would multiply by one of the CPU without a word."""

    def __init__(self, weight_dtype: torch.dtype) -> None:
        super().__init__(torch.float32, META, weight_dtype)
        self.linears: list[Linear] = []

    def make_linear(self, matrix: WeightMatrix, bias: torch.Tensor | None = None) -> Linear:
        self.linears.append(super().make_linear(matrix, bias))
        return self.linears[-1]


class HostExperts:
    """Stands in for the dispatcher: takes and gives only tensors of the CPU."""

    def __init__(self, d_model: int) -> None:
        self._d_model = d_model
        self.n_calls = 0

    def submit(self, layer: int, rows: torch.Tensor, expert_ids: torch.Tensor) -> asyncio.Future[torch.Tensor]:
        assert rows.device == expert_ids.device == CPU
        assert rows.dtype is torch.float32 and expert_ids.dtype is torch.int64
        self.n_calls += 1
        answer: asyncio.Future[torch.Tensor] = asyncio.get_running_loop().create_future()
        answer.set_result(torch.zeros(*expert_ids.shape, self._d_model))
        return answer


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_of_a_forward_is_on_the_device(
    architecture: str, weight_dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))
    path = write_tiny(tmp_path / "m.gguf", TinyModel(architecture, "Q4_K", shape=SHAPE))
    with GGUFIndex.open(path) as index:
        ops = RecordedOps(weight_dtype)
        model = Model.load(index, ops, n_slot=2, n_ctx=16)
        assert all(linear.weight.device == META for linear in ops.linears)
        assert {linear.weight.dtype for linear in ops.linears} == {torch.float32, weight_dtype}
        experts = HostExperts(model.config.d_model)
        first, second = model.cache.allocate(), model.cache.allocate()
        for parts in ([(first, [1, 2, 3])], [(first, [4]), (second, [5, 6])]):
            batch = Batch.of([SlotTokens(slot, tokens) for slot, tokens in parts], model.cache)
            logits = asyncio.run(model.forward(batch, experts))
            assert logits.device == META and logits.shape == (len(parts), model.n_vocab)
        assert experts.n_calls == 2 * len(model.config.moe_layers)
        for layer in range(model.config.n_layer):
            state = model.cache.state(layer)
            assert all(getattr(state, name).device == META for name in state.__slots__)


@pytest.mark.parametrize("architecture", ["qwen35moe", "glm4moe"])
def test_weights_in_bf16_change_rounding_alone(architecture: str, tmp_path: Path) -> None:
    """What a CUDA device computes in fast mode, on the CPU."""
    tokens = list(range(3, 27))
    shape = TinyShape(n_layer=2, n_expert=4, n_used=4)
    path = write_tiny(tmp_path / "m.gguf", TinyModel(architecture, "Q4_K", shape=shape))
    found = []
    for ops in (TorchOps(torch.float64), TorchOps(torch.float32, CPU, torch.bfloat16)):
        with torch_oracle(path, ops) as (model, experts):
            found.append(run_chunks(model, experts, tokens, [len(tokens)]).double())
    exact, rounded = found
    assert not torch.equal(exact, rounded)
    assert float(((rounded - exact).norm(dim=1) / exact.norm(dim=1)).median()) < 0.02


def test_a_gpu_that_computes_experts_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exact dense path. The GPU is Mesa's lavapipe."""
    monkeypatch.setenv("KVASIR_SOFTWARE_GPU", "1")
    path = write_tiny(tmp_path / "m.gguf", TinyModel("qwen3moe", "Q4_K", shape=SHAPE))
    found = []
    for gpu_expert_bytes in (0, 32 << 20):
        with LoadedModel.open(path, n_slot=1, n_ctx=16, n_threads=1, gpu_expert_bytes=gpu_expert_bytes) as loaded:
            kernel = loaded.store.kernel
            assert isinstance(kernel, GpuOrCpuKernel) == bool(gpu_expert_bytes)
            if isinstance(kernel, GpuOrCpuKernel):
                kernel.gpu_from = 1  # lavapipe is slower than the CPU: nothing would go there
            found.append(run_chunks(loaded.model, ExpertDispatcher(loaded.store, NoWorkers()), [3, 4, 5], [2, 1]))
            if isinstance(kernel, GpuOrCpuKernel):
                assert kernel.n_gpu_calls > 0
    assert torch.equal(*found)
