"""The backbone's settings: defaults, every variable, and wrong values by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from backbone.service_settings import ServiceSettings, celery_command
from kvasir.errors import ConfigError
from kvasir_site.service_env import service_settings

DEMO = Path("demo.q4.gguf")


def test_without_anything_the_demo_model_is_served() -> None:
    assert service_settings(DEMO, {}) == ServiceSettings(DEMO, "demo.q4")


def test_every_variable_is_read() -> None:
    environ = {
        "KVASIR_MODEL": "big.gguf", "KVASIR_MODEL_NAME": "big", "KVASIR_SLOTS": "8", "KVASIR_KV_BYTES": "2GiB",
        "KVASIR_CTX": "512", "KVASIR_MAX_WAITING": "9", "KVASIR_STEP_ROWS": "32", "KVASIR_GROUPS": "2",
        "KVASIR_THREADS": "3", "KVASIR_DENSE": "float", "KVASIR_KERNEL": "kx1", "KVASIR_REPLY": "sum",
        "KVASIR_WORKERS": "a:1, b:2", "KVASIR_RELAYS": "wss://r", "KVASIR_WORKER_DEADLINE_S": "2.5",
        "KVASIR_MAX_DEADLINE_S": "60", "KVASIR_STOP_S": "1", "KVASIR_STALL_S": "40",
        "KVASIR_TRACE_TOKENS": "7", "KVASIR_HOT_BYTES": "3GiB", "KVASIR_DEVICE": "auto", "KVASIR_FAST_ROWS": "12",
        "KVASIR_GPU_EXPERT_BYTES": "4GiB",
    }  # fmt: skip
    assert service_settings(DEMO, environ) == ServiceSettings(
        Path("big.gguf"), "big", 8, 2 << 30, 512, 9, 32, 2, 3, "float", "kx1", "sum",
        ("a:1", "b:2"), ("wss://r",), 2.5, 60.0, 1.0, 40.0, n_traced_tokens=7, hot_bytes=3 << 30,
        device="auto", fast_rows=12, gpu_expert_bytes=4 << 30,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KVASIR_SLOTS", "0"),
        ("KVASIR_SLOTS", "many"),
        ("KVASIR_KV_BYTES", "2 elephants"),
        ("KVASIR_REPLY", "f8"),
        ("KVASIR_REPLY", "f16"),
        ("KVASIR_WORKERS", "a:1,,b:2"),
        ("KVASIR_STALL_S", "nan"),
        ("KVASIR_STALL_S", "soon"),
        ("KVASIR_GROUPS", "65"),
        ("KVASIR_GROUPS", "some"),
        ("KVASIR_TRACE_TOKENS", "1025"),
        ("KVASIR_DEVICE", "tpu"),
        ("KVASIR_GPU_EXPERT_BYTES", "some"),
        ("KVASIR_HOT_BYTES", "plenty"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        service_settings(DEMO, {name: value})
    assert value.split(",", maxsplit=1)[0] in str(caught.value)


def test_strict_mode_refuses_a_dense_path_whose_bits_depend_on_the_batch() -> None:
    for dense in ("fast", "float"):
        with pytest.raises(ConfigError, match=rf"KVASIR_STRICT=1.*KVASIR_DENSE={dense}.*KVASIR_DENSE=kx1"):
            service_settings(DEMO, {"KVASIR_STRICT": "1", "KVASIR_DENSE": dense})
    assert service_settings(DEMO, {"KVASIR_STRICT": "1"}).strict
    assert service_settings(DEMO, {"KVASIR_STRICT": "0", "KVASIR_DENSE": "fast"}).dense == "fast"


def test_the_command_holds_as_many_tasks_as_may_run_and_wait() -> None:
    command = celery_command(ServiceSettings(DEMO, "demo", n_slot=5, max_waiting=7), "b2")
    assert command[command.index("-c") + 1] == "12"
    assert command[command.index("-n") + 1] == "b2@%h"
    assert command[command.index("-Q") + 1] == "backbone" and "--pool=threads" in command
