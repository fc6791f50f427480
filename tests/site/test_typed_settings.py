"""The backbone's settings: defaults, every variable, and wrong values by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from backbone.service_settings import ServiceSettings, celery_command
from kvasir.errors import ConfigError
from kvasir_site.typed_settings import service_settings as typed
from kvasir_site.variables import DEMO_MODEL as DEMO
from kvasir_site.variables import read_environment


def service_settings(environ: dict[str, str]) -> ServiceSettings:
    return typed(read_environment(environ | {"KVASIR_RUN_DIR": "/run-dir"}))


RECEIPTS, SUMS = Path("/run-dir/receipts"), Path("/run-dir/sums")


def test_without_anything_the_demo_model_is_served() -> None:
    assert service_settings({}) == ServiceSettings(DEMO, DEMO.stem, receipts_dir=RECEIPTS, sums_dir=SUMS)


def test_every_variable_is_read() -> None:
    environ = {
        "KVASIR_MODEL": "big.gguf", "KVASIR_MODEL_NAME": "big", "KVASIR_SLOTS": "8", "KVASIR_KV_BYTES": "2GiB",
        "KVASIR_CTX": "512", "KVASIR_MAX_WAITING": "9",
        "KVASIR_THREADS": "3", "KVASIR_DENSE": "float", "KVASIR_KERNEL": "kx1", "KVASIR_REPLY": "f16",
        "KVASIR_WORKERS": "a:1, b:2", "KVASIR_RELAYS": "wss://r", "KVASIR_WORKER_DEADLINE_S": "2.5",
        "KVASIR_STOP_S": "1",
        "KVASIR_HOT_BYTES": "3GiB", "KVASIR_DEVICE": "auto",
        "KVASIR_GPU_EXPERT_BYTES": "4GiB",
    }  # fmt: skip
    assert service_settings(environ) == ServiceSettings(
        Path("big.gguf"), "big", n_slot=8, kv_budget_bytes=2 << 30, n_ctx=512, max_waiting=9, n_threads=3,
        dense="float", kernel="kx1", reply="f16", workers=("a:1", "b:2"), relays=("wss://r",), worker_deadline_s=2.5,
        stop_s=1.0, hot_bytes=3 << 30, device="auto", gpu_expert_bytes=4 << 30, receipts_dir=RECEIPTS, sums_dir=SUMS,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KVASIR_SLOTS", "0"),
        ("KVASIR_SLOTS", "many"),
        ("KVASIR_KV_BYTES", "2 elephants"),
        ("KVASIR_REPLY", "f8"),
        ("KVASIR_WORKERS", "a:1,,b:2"),
        ("KVASIR_STOP_S", "nan"),
        ("KVASIR_STOP_S", "soon"),
        ("KVASIR_DEVICE", "tpu"),
        ("KVASIR_GPU_EXPERT_BYTES", "some"),
        ("KVASIR_HOT_BYTES", "plenty"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        service_settings({name: value})
    assert value.split(",", maxsplit=1)[0] in str(caught.value)


def test_strict_mode_refuses_a_dense_path_whose_bits_depend_on_the_batch() -> None:
    for dense in ("fast", "float"):
        with pytest.raises(ConfigError, match=rf"KVASIR_STRICT=1.*KVASIR_DENSE={dense}.*KVASIR_DENSE=kx1"):
            service_settings({"KVASIR_STRICT": "1", "KVASIR_DENSE": dense, "KVASIR_DEVICE": "cuda"})
    assert service_settings({"KVASIR_STRICT": "1"}).strict
    assert service_settings({"KVASIR_STRICT": "0", "KVASIR_DENSE": "float"}).dense == "float"


def test_the_fast_dense_path_needs_a_cuda_device() -> None:
    for device in ({}, {"KVASIR_DEVICE": "cpu"}):
        with pytest.raises(ConfigError, match=r"^KVASIR_DENSE=fast needs a CUDA device.*set KVASIR_DENSE=kx1"):
            service_settings({"KVASIR_DENSE": "fast", **device})
    assert service_settings({"KVASIR_DENSE": "fast", "KVASIR_DEVICE": "cuda"}).dense == "fast"


def test_the_command_holds_as_many_tasks_as_may_run_and_wait() -> None:
    command = celery_command(ServiceSettings(DEMO, "demo", n_slot=5, max_waiting=7), "b2")
    assert command[command.index("-c") + 1] == "12"
    assert command[command.index("-n") + 1] == "b2@%h"
    assert command[command.index("-Q") + 1] == "backbone" and "--pool=threads" in command
