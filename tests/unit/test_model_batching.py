"""A sequence's logits do not depend on how it is cut into forwards or what runs beside it: in float64, to 1e-12."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from backbone.engine.model.model import Batch, Model
from backbone.engine.ops.interface import Routing
from backbone.engine.ops.torch_ops import TorchOps
from kvasir.errors import RequestError
from tests.oracles.model_runs import forward, run_chunks, torch_oracle
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import ARCHITECTURES, TinyShape
from tests.oracles.torch_experts import InProcessExperts

TOLERANCE = 1e-12
SMALL = TinyShape(d_model=64, n_head=4, n_kv_head=2, d_head=16, n_expert=8, n_used=2, d_ff=32)
GENERATOR = np.random.default_rng(3)
SEQUENCES: list[list[int]] = [GENERATOR.integers(0, 256, n).tolist() for n in (24, 17, 9)]

Loaded = tuple[Model, InProcessExperts]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    path = write_tiny(tmp_path_factory.mktemp("batching") / "m.gguf", TinyModel(request.param, shape=SMALL))
    with torch_oracle(path, TorchOps(torch.float64)) as pair:
        yield pair


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).abs().max()) <= TOLERANCE


def alone(loaded: Loaded, number: int) -> Tensor:
    return run_chunks(*loaded, SEQUENCES[number], [len(SEQUENCES[number])])


def test_decode_equals_the_full_pass(loaded: Loaded) -> None:
    assert_close(run_chunks(*loaded, SEQUENCES[0], [1] * 24), alone(loaded, 0))


def test_chunked_prefill_equals_the_full_pass(loaded: Loaded) -> None:
    assert_close(run_chunks(*loaded, SEQUENCES[0], [5, 1, 11, 7]), alone(loaded, 0))


def test_prefill_and_decode_rows_mix(loaded: Loaded) -> None:
    """Three sequences with staggered starts; each batch holds prefill chunks and single tokens."""
    model, experts = loaded
    a, b, c = (model.cache.allocate() for _ in range(3))
    one, two, three = SEQUENCES
    logits: dict[int, list[Tensor]] = {a: [], b: [], c: []}
    schedule = [
        [(a, one[:20])],
        [(b, two[:15]), (a, one[20:21])],
        [(a, one[21:22]), (c, three[:4]), (b, two[15:16])],
        [(c, three[4:]), (b, two[16:]), (a, one[22:])],
    ]
    for parts in schedule:
        for (slot, _), rows in zip(parts, forward(model, experts, parts), strict=True):
            logits[slot].append(rows)
    for slot in (a, b, c):
        model.cache.free(slot)
    for number, slot in enumerate((a, b, c)):
        assert_close(torch.cat(logits[slot]), alone(loaded, number))


def test_forwards_in_flight_together_do_not_touch_each_other(loaded: Loaded) -> None:
    model, experts = loaded

    async def sequence(number: int) -> Tensor:
        slot = model.cache.allocate()
        tokens, logits = SEQUENCES[number], []
        for start, stop in ((0, 5), (5, 6), (6, len(tokens))):
            batch = Batch.of([(slot, tokens[start:stop])], model.cache)
            logits.append(await model.forward(batch, experts, range(batch.n_rows)))
        model.cache.free(slot)
        return torch.cat(logits)

    async def together() -> list[Tensor]:
        return await asyncio.gather(*(sequence(number) for number in range(3)))

    for number, logits in enumerate(asyncio.run(together())):
        assert_close(logits, alone(loaded, number))


def test_a_slot_keeps_no_trace_of_the_sequence_before(loaded: Loaded) -> None:
    """Bit for bit, also after state that is not finite."""
    model, _ = loaded
    first = alone(loaded, 0)
    for layer in range(model.config.n_layer):
        state = model.cache.state(layer)
        for name in state.__slots__:
            getattr(state, name).fill_(float("nan"))
    assert torch.equal(alone(loaded, 0), first)


def test_logits_are_those_of_the_rows_asked_for(loaded: Loaded) -> None:
    model, experts = loaded
    full = alone(loaded, 0)
    for wanted, expected in ((None, full[-1:]), ([3, 0], full[[3, 0]]), ([], full[:0])):
        slot = model.cache.allocate()
        batch = Batch.of([(slot, SEQUENCES[0])], model.cache)
        logits = asyncio.run(model.forward(batch, experts, wanted))
        model.cache.free(slot)
        assert logits.shape == expected.shape
        torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("tokens", "rows"), [([-1], None), ([288], None), ([1], [1]), ([1], [-1])])
def test_tokens_and_rows_that_do_not_exist_are_refused(loaded: Loaded, tokens: list[int], rows: list[int]) -> None:
    model, experts = loaded
    slot = model.cache.allocate()
    batch = Batch.of([(slot, tokens)], model.cache)
    with pytest.raises(RequestError, match=r"288 tokens|rows 0 to 0"):
        asyncio.run(model.forward(batch, experts, rows))
    assert model.cache.length(slot) == 0
    model.cache.free(slot)


@dataclass(frozen=True, slots=True)
class Failing:
    """An ExpertCaller that gives up."""

    error: BaseException

    def submit(self, layer: int, rows: Tensor, routing: Routing) -> Awaitable[Tensor]:
        return self._fail()

    async def _fail(self) -> Tensor:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no experts today"), asyncio.CancelledError()], ids=repr)
def test_a_failed_forward_leaves_its_slots_unusable_until_reset(loaded: Loaded, error: BaseException) -> None:
    model, experts = loaded
    slot = model.cache.allocate()
    with pytest.raises(type(error)):
        forward(model, Failing(error), [(slot, [1, 2])])
    with pytest.raises(RequestError, match="half-written"):
        forward(model, experts, [(slot, [1, 2])])
    model.cache.reset(slot)
    assert torch.equal(forward(model, experts, [(slot, SEQUENCES[2])])[0], alone(loaded, 2))
    model.cache.free(slot)
