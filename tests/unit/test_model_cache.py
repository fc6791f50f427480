"""Slots: who may use one when, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import psutil
import pytest
import torch

from backbone.engine.model.architectures import read_config
from backbone.engine.model.batch import Batch
from backbone.engine.model.kv_cache import SlotCache
from backbone.engine.ops.interface import Segment
from backbone.engine.ops.model_config import AttentionConfig, GatedDeltaConfig, ModelConfig
from backbone.engine.serving.waiting_line import slots_for_budget
from kvasir.errors import ConfigError, RequestError
from tests.oracles.tiny_layout import DELTA, TinyShape, tiny_metadata

SHAPE = TinyShape(n_layer=2, d_model=32, n_head=2, n_kv_head=1, d_head=16)


def config(architecture: str = "qwen35moe") -> ModelConfig:
    metadata = {f"{architecture}.{key}": value for key, value in tiny_metadata(architecture, SHAPE).items()}
    return read_config({"general.architecture": architecture, **metadata})


def new_cache(n_slot: int = 3, n_ctx: int = 8) -> SlotCache:
    return SlotCache(config(), n_slot=n_slot, n_ctx=n_ctx, dtype=torch.float32)


def test_slots_are_given_lowest_first_and_run_out() -> None:
    cache = new_cache()
    assert [cache.allocate() for _ in range(3)] == [0, 1, 2]
    assert cache.n_free == 0
    with pytest.raises(RequestError, match="all 3 slots"):
        cache.allocate()
    cache.free(2)
    cache.free(0)
    assert cache.allocate() == 0


def test_bytes_are_those_of_keys_values_and_recurrent_state() -> None:
    """One recurrent layer and one attention layer, 4 bytes a value."""
    conv = (DELTA.conv_width - 1) * DELTA.d_conv
    state = DELTA.d_value * DELTA.d_state
    kv = 2 * 8 * SHAPE.n_kv_head * SHAPE.d_head
    assert new_cache().slot_bytes == 4 * (conv + state + kv)
    assert new_cache().n_bytes == 3 * new_cache().slot_bytes


def big_config() -> ModelConfig:
    """The 122B model's mixers: 36 recurrent layers, 12 with attention."""
    small = config()
    recurrent = GatedDeltaConfig(n_k_head=16, n_v_head=64, d_k=128, d_v=128, conv_width=4)
    attention = next(layer.mixer for layer in small.layers if isinstance(layer.mixer, AttentionConfig))
    attention = replace(attention, n_head=32, n_kv_head=2, d_head=256, d_head_v=256)
    mixers = [attention if number % 4 == 3 else recurrent for number in range(48)]
    return replace(small, layers=tuple(replace(small.layers[0], layer=n, mixer=m) for n, m in enumerate(mixers)))


def test_a_slot_of_a_large_model_is_mostly_recurrent_state_and_the_budget_counts_it() -> None:
    cache = SlotCache(big_config(), n_slot=1, n_ctx=4096, dtype=torch.float32)
    assert cache.recurrent_bytes == 36 * 4 * (64 * 128 * 128 + 3 * 12_288)  # 156 MB, whatever the context
    assert cache.slot_bytes == cache.recurrent_bytes + 12 * 4096 * 2 * 2 * 256 * 4
    keys_alone = cache.slot_bytes - cache.recurrent_bytes
    assert slots_for_budget(cache.slot_bytes, 64, 64 * keys_alone, cache.recurrent_bytes) == 36
    with pytest.raises(
        ConfigError, match=r"341 MiB, 149 MiB of it recurrent state, and the budget is 286 MiB: .* context"
    ):
        slots_for_budget(cache.slot_bytes, 64, 300_000_000, cache.recurrent_bytes)


def test_a_cache_takes_memory_only_for_slots_that_are_given() -> None:
    before = psutil.Process().memory_info().rss
    cache = SlotCache(big_config(), n_slot=64, n_ctx=4096, dtype=torch.float32)  # 23 GB when it is full
    assert psutil.Process().memory_info().rss - before < 100e6
    cache.allocate()
    assert psutil.Process().memory_info().rss - before < cache.recurrent_bytes + 100e6


def test_lengths_move_on_when_a_forward_is_done() -> None:
    cache = new_cache()
    slot = cache.allocate()
    with cache.using([Segment(slot, 0, 5, 0)]):
        assert cache.length(slot) == 0
    assert cache.length(slot) == 5
    cache.reset(slot)
    assert cache.length(slot) == 0


@pytest.mark.parametrize(
    ("segments", "reason"),
    [
        ([Segment(0, 0, 9, 0)], "room for 8"),
        ([Segment(0, 0, 1, 3)], "holds 0 tokens, the batch goes on at 3"),
        ([Segment(0, 0, 1, 0), Segment(0, 1, 1, 0)], "twice"),
        ([Segment(1, 0, 1, 0)], "slot 1 is free"),
        ([Segment(3, 0, 1, 0)], "slots are 0 to 2"),
        ([Segment(-1, 0, 1, 0)], "slots are 0 to 2"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(segments: list[Segment], reason: str) -> None:
    cache = new_cache()
    cache.allocate()
    with pytest.raises(RequestError, match=reason), cache.using(segments):
        pytest.fail("the batch was let in")
    with cache.using([Segment(0, 0, 1, 0)]):
        pass


def test_a_slot_in_use_is_neither_used_twice_nor_freed() -> None:
    cache = new_cache()
    slot = cache.allocate()
    segment = Segment(slot, 0, 1, 0)
    with cache.using([segment]):
        with pytest.raises(RequestError, match="in use"):
            cache.free(slot)
        with pytest.raises(RequestError, match="in use"):
            cache.reset(slot)
        with pytest.raises(RequestError, match="in use"), cache.using([segment]):
            pytest.fail("the slot was let in twice")
    cache.free(slot)
    with pytest.raises(RequestError, match="is free"):
        cache.free(slot)


def test_batches_need_tokens() -> None:
    cache = new_cache()
    slot = cache.allocate()
    cases: list[list[tuple[int, list[int]]]] = [[], [(slot, [])]]
    for parts in cases:
        with pytest.raises(RequestError, match="token"):
            Batch.of(parts, cache)


@pytest.mark.parametrize(("n_slot", "n_ctx"), [(0, 8), (1, 0), (-1, 8)])
def test_a_cache_of_nothing_is_refused(n_slot: int, n_ctx: int) -> None:
    with pytest.raises(ConfigError, match="1 or more"):
        SlotCache(config(), n_slot=n_slot, n_ctx=n_ctx, dtype=torch.float32)


def test_a_model_without_recurrent_layers_has_keys_and_values_only() -> None:
    cache = SlotCache(config("qwen3moe"), n_slot=1, n_ctx=8, dtype=torch.float64)
    assert cache.n_bytes == 8 * 2 * 2 * 8 * SHAPE.n_kv_head * SHAPE.d_head
