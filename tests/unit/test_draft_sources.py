"""Which source a sequence drafts from, and when the MTP head is run at all: by shares and costs, times from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from backbone.engine.drafts.costs import HeadCost, RowCost
from backbone.engine.drafts.drafter import Drafter
from backbone.engine.drafts.head_trial import HeadTrial
from backbone.engine.drafts.length import DEAREST_ROW, HeadShare, gain, worth_guessing
from backbone.engine.model.mtp_head import MtpHead, SlotToken
from backbone.engine.model.mtp_layer import Guessed
from backbone.engine.serving.draft_sources import TRY_EVERY, DraftSources
from backbone.engine.serving.sequence import Sequence
from backbone.engine.text.tokenizer import Tokenizer
from backbone.process.served_model import open_model
from backbone.sampling_params import SamplingParams
from backbone.service_settings import ServiceSettings
from kvasir.errors import ConfigError
from kvasir.gguf.index import GGUFIndex
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import TinyShape

SHAPE = TinyShape(n_layer=2, n_expert=4, n_used=2, n_mtp_layer=1)
N_VOCAB = 2000


def test_shares_of_the_head_are_apart_by_guess() -> None:
    shares = HeadShare()
    for _ in range(60):
        shares.see(0, is_right=True)
        shares.see(1, is_right=False)
    first, second, *later = shares.first(5)
    assert first > 0.99 and second < 0.02 and later == HeadShare().first(5)[2:]
    shares.see(7, is_right=True)
    assert shares.first(3)[2] > HeadShare().first(3)[2]


@pytest.mark.parametrize(
    ("shares", "cost", "n"),
    [([0.6, 0.5], 0.49, 1), ([0.6, 0.5], 0.51, 0), ([0.6, 0.5], 0.19, 2), ([1.0] * 8, 0.89, 8), ([], 0.1, 0)],
)
def test_guesses_go_on_as_long_as_the_last_pays_clearly(shares: list[float], cost: float, n: int) -> None:
    assert worth_guessing(shares, cost) == n


def test_a_gain_is_what_is_right_beyond_the_costs() -> None:
    assert gain([0.5, 0.5], 0.2) == pytest.approx(0.5 + 0.25 - 2 * 0.2)
    assert gain([], 0.5) == 0


def test_a_long_match_comes_before_the_head_and_a_short_one_after_it() -> None:
    long, short = Drafter([*range(12), 99, *range(12)], 4), Drafter([1, 2, 50, 60, 1, 2], 4)
    known = HeadShare()
    assert long.head_drafts([], 0.3, 0.1, 4, known) == 0
    assert long.draft([], 0.3, 4) == (99, 0, 1, 2)
    assert short.head_drafts([], 0.3, 0.1, 4, known) == 1
    assert short.head_drafts([], 0.3, 0.1, 0, known) == short.head_drafts([], 0.3, 0.4, 4, known) == 0
    assert Drafter([1, 2, 3], 4).head_drafts([], 0.05, 0.05, 4, known) == 3


def test_a_sequence_begins_with_what_others_have_learned() -> None:
    known = HeadShare()
    for token in range(300):
        one = Drafter([1], 4)
        one.head_drafts([], 0.3, 0.1, 4, known)
        one.note_head([], (5,))
        one.head_drafts([token], 0.3, 0.1, 4, known)
    assert known.first(1)[0] < 0.1 and known.first(2)[1] == HeadShare().first(2)[1]
    assert Drafter([1], 4).head_drafts([], 0.3, 0.1, 4, known) == 0


def test_a_head_that_is_wrong_is_left_and_comes_back_when_it_is_right() -> None:
    """Its guesses are judged in order, and those after a wrong one not at all."""
    drafter, answer, known = Drafter([1], 4), list[int](), HeadShare()
    for token in range(100, 140):
        assert drafter.head_drafts(answer, 0.1, 0.1, 4, known) < 3
        drafter.note_head(answer, (5, token + 1, 7))
        answer.append(token)
    assert drafter.head_drafts(answer, 0.1, 0.1, 4, known) == 0
    for token in range(200, 320, 3):
        drafter.head_drafts(answer, 0.1, 0.1, 4, known)
        drafter.note_head(answer, (token, token + 1, 7))
        answer += [token, token + 1, token + 2]
    assert drafter.head_drafts(answer, 0.1, 0.1, 4, known) == 2


def test_guesses_for_an_answer_that_is_still_being_read_are_not_judged() -> None:
    """They would be held against tokens before them."""
    drafter, answer, known = Drafter([1], 4), [*range(1000, 1200)], HeadShare()
    assert [drafter.head_drafts(answer, 0.1, 0.1, 4, known) for _ in range(2)] == [0, 0]
    drafter.note_head(answer, (5,))
    assert [drafter.head_drafts(answer, 0.1, 0.1, 4, known) > 0 for _ in range(2)] == [False, True]
    assert known.first(1) == HeadShare().first(1)


def test_the_cost_of_a_guess_is_shared_by_those_who_guess() -> None:
    step, cost = RowCost(), HeadCost()
    assert cost.relative(step, 4, 4) == pytest.approx(0.1)
    for n_rows in (4, 5, 6) * 20:
        step.add(n_rows, 0.100)
        cost.add(4, 0.5 if n_rows == 4 and step.seconds(4) is None else 0.010)
    assert cost.relative(step, 4, 4) == pytest.approx(0.1, rel=0.05)
    assert cost.relative(step, 4, 1) > 2 * cost.relative(step, 4, 4)


def test_the_first_time_of_a_head_does_not_count_and_old_ones_are_forgotten() -> None:
    step, cost = RowCost(), HeadCost()
    step.add(1, 0.1)
    cost.add(1, 100.0)
    assert cost.relative(step, 1, 1) == pytest.approx(0.1)
    cost.add(1, 0.3)
    assert cost.relative(step, 1, 1) == pytest.approx(3.0)
    found = [cost.relative(step, 1, 1) for _ in range(300)]
    assert found[0] == pytest.approx(3.0) and found[-1] == pytest.approx(0.1)


def steps_with_drafts(trial: HeadTrial, n_steps: int, n_sequences: int, gain: float) -> int:
    """How many of some steps had drafts, where those make `gain` times the tokens a second."""
    n = 0
    for _ in range(n_steps):
        has_drafts = trial.wants_drafts(n_sequences)
        n_tokens = 2 * n_sequences if has_drafts else n_sequences
        seconds = 2 * 0.1 / gain if has_drafts else 0.1
        trial.add(n_sequences, has_drafts=has_drafts, n_tokens=n_tokens, seconds=seconds)
        n += has_drafts
    return n


def test_drafts_that_pay_in_tokens_a_second_stay_and_others_are_tried_now_and_then() -> None:
    paying, losing = HeadTrial(), HeadTrial()
    assert 300 > steps_with_drafts(paying, 300, 8, 1.3) > 280
    assert 0 < steps_with_drafts(losing, 300, 8, 0.9) < 20
    assert steps_with_drafts(losing, 3000, 8, 1.3) > 1500  # they have become better
    assert steps_with_drafts(paying, 3000, 8, 0.9) < 200


def test_what_pays_for_few_sequences_need_not_pay_for_many() -> None:
    trial = HeadTrial()
    steps_with_drafts(trial, 60, 2, 2.0)
    steps_with_drafts(trial, 60, 30, 0.5)
    assert [trial.wants_drafts(n) for n in (2, 3, 16, 30, 31)] == [True, True, False, False, False]


class FakeHead:
    """Guesses that a token is followed by the next number."""

    def __init__(self, seconds: float, tick: Callable[[float], None]) -> None:
        self.asked: list[list[SlotToken]] = []
        self.forgotten: list[int] = []
        self.is_broken = False
        self._seconds = seconds
        self._tick = tick

    def is_ready(self, slot: int, _n_cached: int) -> bool:
        return slot not in self.forgotten

    def hidden(self, slots: list[int]) -> Tensor:
        return torch.tensor(slots)[:, None]

    def forget(self, slots: Iterator[int]) -> None:
        self.forgotten += slots

    async def guess(self, tokens: list[SlotToken], hidden: Tensor) -> Guessed:
        assert hidden[:, 0].tolist() == [token.slot for token in tokens]
        if self.is_broken:
            raise ZeroDivisionError("a defect")
        self._tick(self._seconds)
        self.asked.append(list(tokens))
        logits = torch.zeros(len(tokens), N_VOCAB)
        for row, token in enumerate(tokens):
            logits[row, token.token_id + 1] = 1.0
        return Guessed(hidden, logits)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sources")
    return write_tiny(directory / "m.gguf", TinyModel("qwen35moe", "Q4_K", shape=SHAPE))


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    with GGUFIndex.open(path) as index:
        return Tokenizer.from_metadata(index.metadata)


class Sources:
    """Sources over a fake head, a clock by hand, and sequences that decode."""

    def __init__(self, tokenizer: Tokenizer, n_sequences: int, head_s: float, max_drafts: int = 3) -> None:
        self.now = 0.0
        self.head = FakeHead(head_s, self.tick)
        self.sources = DraftSources(cast(MtpHead, self.head), 1000, lambda: self.now)
        params = SamplingParams(temperature=0)
        self.sequences = [
            Sequence(str(n), (n, 10 + n), params, tokenizer, max_drafts=max_drafts) for n in range(n_sequences)
        ]
        for slot, sequence in enumerate(self.sequences):
            sequence.slot, sequence.n_cached = slot, 1
        self._new_token = 100

    def make_rows_cheap(self) -> None:
        """Steps have taken as long with many rows as with few."""
        for n_rows in range(1, 60):
            self.sources._row_cost.add(n_rows, 0.1)

    def tick(self, seconds: float) -> None:
        self.now += seconds

    def step(self, room: int = 100, n_most: int = 9) -> list[tuple[int, ...]]:
        """Drafts of all sequences, which then go on with a token that the head did not guess."""
        rule = asyncio.run(self.sources.next_rule(self.sequences, lambda: room))
        drafts = [rule(sequence, n_most) for sequence in self.sequences]
        self.sources.note_step(len(self.sequences) + sum(map(len, drafts)), len(self.sequences), 0.1)
        for sequence in self.sequences:
            sequence.n_cached += 1
            sequence.output_ids.append(self._new_token)
            self._new_token = (self._new_token + 2) % (N_VOCAB - 1)
        return drafts


def test_one_forward_of_the_head_for_each_guess_of_all(tokenizer: Tokenizer) -> None:
    world = Sources(tokenizer, 3, 0.0001)
    world.make_rows_cheap()
    assert world.step() == [(11, 12, 13), (12, 13, 14), (13, 14, 15)]
    assert [[tuple(token) for token in tokens] for tokens in world.head.asked] == [
        [(0, 1, 10), (1, 1, 11), (2, 1, 12)],
        [(0, 2, 11), (1, 2, 12), (2, 2, 13)],
        [(0, 3, 12), (1, 3, 13), (2, 3, 14)],
    ]
    assert Sources(tokenizer, 3, 0.0001).step(n_most=1) == [(11,), (12,), (13,)]


def test_no_more_is_guessed_than_there_is_room_for(tokenizer: Tokenizer) -> None:
    world = Sources(tokenizer, 3, 0.0001)
    world.make_rows_cheap()
    assert world.step(room=7) == [(11, 12, 13), (12, 13, 14), (13,)]
    assert [len(tokens) for tokens in world.head.asked] == [3, 2, 2]
    assert Sources(tokenizer, 3, 0.0001).step(room=0) == [(), (), ()]


def test_a_head_that_costs_too_much_is_not_run(tokenizer: Tokenizer) -> None:
    """Twice, to find that out; then only after a long while, as it may have become faster."""
    world = Sources(tokenizer, 2, 1.0)
    counts = []
    for _ in range(150):
        world.step()
        counts.append(len(world.head.asked))
    assert counts[-1] == counts[5] <= 4


def test_a_head_that_is_always_wrong_is_tried_now_and_then(tokenizer: Tokenizer) -> None:
    world = Sources(tokenizer, 2, 0.0001)
    for _ in range(60):
        world.step()
    n_asked = len(world.head.asked)
    drafts = [world.step() for _ in range(4 * TRY_EVERY)]
    assert sum(found != [(), ()] for found in drafts) <= 4
    assert 4 <= len(world.head.asked) - n_asked <= 12


def test_sequences_that_must_not_draft_never_do(tokenizer: Tokenizer) -> None:
    world = Sources(tokenizer, 2, 0.0001, max_drafts=0)
    assert all(world.step() == [(), ()] for _ in range(2 * TRY_EVERY))
    assert not world.head.asked


def test_a_defect_of_the_head_ends_it_for_these_sequences_alone(tokenizer: Tokenizer) -> None:
    world = Sources(tokenizer, 2, 0.0001)
    world.head.is_broken = True
    assert world.step() == [(), ()]
    world.head.is_broken = False
    assert world.head.forgotten == [0, 1] and world.step() == [(), ()]


def test_a_full_step_drafts_nothing(tokenizer: Tokenizer) -> None:
    world = Sources(tokenizer, 80, 0.0001)
    for n_rows in (40, 80) * 40:
        world.sources._row_cost.add(n_rows, 0.001 * n_rows)
    assert world.sources._row_cost.relative(80) > DEAREST_ROW
    assert set(world.step()) == {()}
    assert not world.head.asked


def test_a_head_counts_in_the_budget_of_slots_where_it_is_of_use(path: Path) -> None:
    """With drafts on, and only where no answer could change."""
    settings = ServiceSettings(path, "m", n_slot=4, n_ctx=64, n_threads=1)
    sizes = {}
    for speculate, dense in (("off", "kx1"), ("auto", "kx1"), ("auto", "float")):
        with open_model(replace(settings, speculate=speculate, dense=dense)) as loaded:
            assert (loaded.model.mtp_head is not None) is ((speculate, dense) == ("auto", "kx1"))
            sizes[speculate, dense] = loaded.model.cache.slot_bytes
    assert sizes["auto", "kx1"] > sizes["off", "kx1"] == sizes["auto", "float"]
    budget = 4 * sizes["off", "kx1"]
    with open_model(replace(settings, kv_budget_bytes=budget)) as loaded:
        assert loaded.model.cache.n_slot == 4
    with open_model(replace(settings, kv_budget_bytes=budget, speculate="auto")) as loaded:
        assert loaded.model.cache.n_slot == budget // sizes["auto", "kx1"] < 4
    with pytest.raises(ConfigError, match="a slot of this model takes"):
        open_model(replace(settings, kv_budget_bytes=sizes["off", "kx1"], speculate="auto"))
