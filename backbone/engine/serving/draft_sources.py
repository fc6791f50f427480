"""Where an engine's drafts come from: the sequences' own texts, and the model's MTP head where it has one.

`engine` asks for a rule before each step and tells how long steps took. Which source a sequence had better use is the
`drafter`'s to say; here the head is run, once for all sequences that want its first guess, again for the second, ...
The head computes on this thread, as the dense path, and waits for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from backbone.engine.drafts.costs import HeadCost, RowCost
from backbone.engine.drafts.head_trial import HeadTrial
from backbone.engine.drafts.length import DEAREST_ROW, HeadShare
from backbone.engine.model.mtp_head import MtpHead, SlotToken
from backbone.engine.serving.scheduler import no_drafts
from backbone.engine.serving.sequence import Sequence as EngineSequence

logger = logging.getLogger(__name__)

Drafts = tuple[int, ...]
DraftRule = Callable[[EngineSequence, int], Drafts]
TRY_EVERY = 32  # steps
_NOTHING: Mapping[EngineSequence, Drafts] = MappingProxyType({})


@dataclass(slots=True)
class _Rule:
    """What the rule of the step in flight is about."""

    n_decoding: int = 0
    has_guesses: bool = False  # of the head, among its drafts
    is_trying: bool = False  # the head, without drafting
    head_s: float = 0.0


class DraftSources:
    """The sources of one engine. The clock only decides how far sequences draft."""

    def __init__(self, head: MtpHead | None, n_ctx: int, clock: Callable[[], float]) -> None:
        self._row_cost = RowCost()
        self._head = head
        self._head_trial = HeadTrial()
        self._rule = _Rule()
        self._head_cost = HeadCost()
        self._head_share = HeadShare()
        self._n_ctx = n_ctx
        self._clock = clock
        self._n_rules = 0

    async def next_rule(self, running: Sequence[EngineSequence], room: Callable[[], int]) -> DraftRule:
        """How the next step's decoding sequences draft, each in at most so many rows.

        `room` counts the rows that are free for drafts; it is asked only if the head may guess.
        """
        decoding = [sequence for sequence in running if sequence.n_pending == 1]
        row_cost = self._row_cost.relative(len(decoding))
        self._rule = _Rule(len(decoding))
        if row_cost > DEAREST_ROW:
            return no_drafts
        guessed = _NOTHING if self._head is None else await self._guess(self._head, decoding, row_cost, room)

        def draft(sequence: EngineSequence, n_most: int) -> Drafts:
            drafts = guessed.get(sequence)
            return sequence.draft(row_cost, n_most, self._n_ctx) if drafts is None else drafts[:n_most]

        return draft

    def note_step(self, n_rows: int, n_tokens: int, seconds: float) -> None:
        """The step of the last rule, all of its rows of sequences that decode, took so long."""
        self._row_cost.add(n_rows, seconds)
        rule = self._rule
        if self._head is not None and not rule.is_trying and rule.n_decoding:
            self._head_trial.add(
                rule.n_decoding, has_drafts=rule.has_guesses, n_tokens=n_tokens, seconds=seconds + rule.head_s
            )

    async def _guess(
        self, head: MtpHead, decoding: Sequence[EngineSequence], row_cost: float, room: Callable[[], int]
    ) -> Mapping[EngineSequence, Drafts]:
        """The head's drafts of those that want them."""
        ready = [s for s in decoding if s.slot is not None and head.is_ready(s.slot, s.n_cached)]
        wanted = self._wanted(ready, len(decoding), row_cost, room)
        if wanted and not self._head_trial.wants_drafts(len(decoding)):
            wanted = {}
        tried = self._tried(ready, wanted, len(decoding), row_cost)
        self._rule.has_guesses, self._rule.is_trying = bool(wanted), bool(tried)
        asked = wanted | tried
        if not asked:
            return _NOTHING
        try:
            drafts = await self._run(head, asked)
        except Exception:  # whatever it was, the sequences can go on without the head
            logger.exception("the MTP head guesses no more for %d sequences", len(asked))
            head.forget(s.slot for s in asked if s.slot is not None)
            return _NOTHING
        return {sequence: drafts[sequence] for sequence in wanted}

    def _wanted(
        self, ready: Sequence[EngineSequence], n_decoding: int, row_cost: float, room: Callable[[], int]
    ) -> dict[EngineSequence, int]:
        """How many guesses each sequence wants, those with most first. The fewer want any, the more each costs."""
        wanted = self._ask(ready, n_decoding, row_cost, room)
        if len(wanted) < len(ready):
            wanted = self._ask(list(wanted), n_decoding, row_cost, room)
        return dict(sorted(wanted.items(), key=lambda item: -item[1]))

    def _ask(
        self, sequences: Sequence[EngineSequence], n_decoding: int, row_cost: float, room: Callable[[], int]
    ) -> dict[EngineSequence, int]:
        if not sequences:
            return {}
        head_cost = self._head_cost.relative(self._row_cost, n_decoding, len(sequences))
        if row_cost + head_cost > DEAREST_ROW:
            return {}
        wanted, n_left = {}, room()
        for sequence in sequences:
            n = sequence.head_drafts(row_cost, head_cost, n_left, self._n_ctx, self._head_share)
            if n:
                wanted[sequence] = n
                n_left -= n
        return wanted

    def _tried(
        self, ready: Sequence[EngineSequence], wanted: Mapping[EngineSequence, int], n_decoding: int, row_cost: float
    ) -> dict[EngineSequence, int]:
        """Now and then a guess for each sequence that wants none, judged and not drafted: it may do better by now."""
        self._n_rules += 1
        others = [sequence for sequence in ready if sequence not in wanted and sequence.may_draft]
        if self._n_rules % TRY_EVERY or not others:
            return {}
        head_cost = self._head_cost.relative(self._row_cost, n_decoding, len(ready))
        return dict.fromkeys(others, 1) if row_cost + head_cost <= DEAREST_ROW else {}

    async def _run(self, head: MtpHead, wanted: Mapping[EngineSequence, int]) -> Mapping[EngineSequence, Drafts]:
        """Guess, one token of each sequence after the other."""
        slots = [sequence.slot for sequence in wanted if sequence.slot is not None]
        tokens = [
            SlotToken(slot, sequence.n_cached, sequence.next_tokens(1)[0])
            for slot, sequence in zip(slots, wanted, strict=True)
        ]
        hidden = head.hidden(slots)
        drafts: list[list[int]] = [[] for _ in slots]
        for number in range(max(wanted.values())):
            n_rows = sum(n > number for n in wanted.values())  # those that want most are first
            began = self._clock()
            hidden, logits = await head.guess(tokens[:n_rows], hidden[:n_rows])
            likeliest: list[int] = logits.argmax(-1).tolist()
            seconds = self._clock() - began
            self._head_cost.add(n_rows, seconds)
            self._rule.head_s += seconds
            for row, token_id in enumerate(likeliest):
                drafts[row].append(token_id)
                tokens[row] = SlotToken(tokens[row].slot, tokens[row].position + 1, token_id)
        for sequence, found in zip(wanted, drafts, strict=True):
            sequence.note_head(found)
        return {sequence: tuple(found) for sequence, found in zip(wanted, drafts, strict=True)}
