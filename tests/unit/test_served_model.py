"""What a backbone process serves: its fingerprint covers the scale of sums, and slots that do not fit are told of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backbone.engine.swarm.sum_scale import SumScale
from backbone.process.served_model import available_memory, directory_entry, open_model, open_sum_scale, too_many_slots
from backbone.service_settings import ServiceSettings
from kvasir.byte_sizes import format_size
from tests.unit.engine_service import tiny_model


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    return ServiceSettings(tiny_model(tmp_path), "m", n_slot=2, n_ctx=64, n_threads=1, sums_dir=tmp_path / "sums")


def fingerprint(settings: ServiceSettings, change: Callable[[SumScale], SumScale] = lambda scale: scale) -> str:
    with open_model(settings) as loaded:
        scale = open_sum_scale(settings, loaded)
        return directory_entry(settings, loaded, scale and change(scale), has_chat=False).fingerprint


def test_another_scale_of_sums_is_another_fingerprint(settings: ServiceSettings) -> None:
    sums = replace(settings, reply="sum")
    measured = fingerprint(sums)
    assert fingerprint(sums) == measured  # read from its file
    changed = [
        fingerprint(sums, lambda scale: replace(scale, bits=scale.bits + 1)),
        fingerprint(sums, lambda scale: replace(scale, output_rms={**scale.output_rms, 0: scale.output_rms[0] * 2})),
    ]
    assert len({measured, *changed}) == 3


def test_a_kept_scale_with_other_values_is_another_fingerprint(settings: ServiceSettings) -> None:
    sums = replace(settings, reply="sum")
    measured = fingerprint(sums)
    (path,) = settings.sums_dir.iterdir()
    kept = SumScale.from_json(path.read_text())
    path.write_text(replace(kept, output_rms={layer: rms * 2 for layer, rms in kept.output_rms.items()}).as_json())
    assert fingerprint(sums) != measured


def test_replies_that_are_no_sums_have_no_scale(settings: ServiceSettings) -> None:
    plain = fingerprint(settings)
    fingerprint(replace(settings, reply="sum"))
    assert len(list(settings.sums_dir.iterdir())) == 1
    with open_model(settings) as loaded:
        assert open_sum_scale(settings, loaded) is None
    assert fingerprint(settings) == plain
    assert fingerprint(replace(settings, reply="f16")) != plain


def test_slots_that_memory_cannot_hold_are_told_of(settings: ServiceSettings, caplog: pytest.LogCaptureFixture) -> None:
    with open_model(settings, lambda: None) as loaded:
        slot_bytes = loaded.model.cache.slot_bytes
    with open_model(settings, lambda: 2 * slot_bytes):
        assert not caplog.records
    with open_model(settings, lambda: 2 * slot_bytes - 1) as loaded:
        assert loaded.model.cache.n_slot == 2  # it is said, and nothing is taken away
    (record,) = caplog.records
    for part in (format_size(2 * slot_bytes), "2 slots of 64 tokens", "KVASIR_KV_BYTES", "KVASIR_SLOTS"):
        assert part in record.getMessage()
    caplog.clear()
    with open_model(replace(settings, kv_budget_bytes=2 * slot_bytes), lambda: 0):
        assert not caplog.records  # the operator has said what slots may take


def test_a_warning_names_what_is_available() -> None:
    assert too_many_slots(100, 3, 16, None) is None
    assert too_many_slots(100, 3, 16, 300) is None
    assert "300 B when all are full (100 B each), and 299 B of memory" in (too_many_slots(100, 3, 16, 299) or "")


def test_available_memory_is_the_kernels_estimate(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert available_memory(meminfo) is None
    meminfo.write_text("MemTotal:       16384 kB\nMemFree:          100 kB\nMemAvailable:    8192 kB\n")
    assert available_memory(meminfo) == 8192 * 1024
    for broken in ("MemTotal: 1 kB\n", "MemAvailable:\n", "MemAvailable: much kB\n"):
        meminfo.write_text(broken)
        assert available_memory(meminfo) is None
