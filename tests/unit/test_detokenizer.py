"""Text as it comes: never half a character, never a stop string or a part of one that may yet be complete."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.text.detokenizer import IncrementalDetokenizer, StopMatcher
from backbone.engine.text.tokenizer import Tokenizer
from kvasir.errors import RequestError
from tests.oracles.tiny_vocabulary import bpe_metadata


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(bpe_metadata("qwen2"))


@functools.cache
def token_of_byte() -> dict[bytes, int]:
    return {tokenizer().token_bytes(token): token for token in reversed(range(tokenizer().n_vocab))}


def push_bytes(raw: bytes) -> list[str]:
    """The texts after each byte, and at the end."""
    detokenizer = IncrementalDetokenizer(tokenizer())
    return [*(detokenizer.push(token_of_byte()[bytes([byte])]) for byte in raw), detokenizer.finish()]


def test_a_character_appears_when_its_last_byte_has_come() -> None:
    assert push_bytes("a🙂b".encode()) == ["a", "", "", "", "🙂", "b", ""]


def test_an_unfinished_character_becomes_the_replacement_character_at_the_end() -> None:
    assert push_bytes(b"a\xf0\x9f") == ["a", "", "", "\ufffd"]


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.binary(max_size=12), st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace"))))
def test_the_pieces_make_the_text_of_all_bytes(raw: bytes) -> None:
    assert "".join(push_bytes(raw)) == raw.decode("utf-8", "replace")


def test_control_tokens_are_shown_only_when_asked() -> None:
    token = tokenizer().vocabulary.texts.index("<|im_end|>")
    assert IncrementalDetokenizer(tokenizer()).push(token) == ""
    assert IncrementalDetokenizer(tokenizer(), skip_special=False).push(token) == "<|im_end|>"


def run(stops: list[str], *pieces: str) -> tuple[list[str], str | None]:
    """The texts shown after each piece, and at the end; and the stop string that was found."""
    matcher = StopMatcher(stops)
    shown = [matcher.push(piece).text for piece in pieces]
    return [*shown, matcher.finish()], matcher.stop


def test_a_possible_beginning_is_held_back_until_it_is_decided() -> None:
    assert run(["END"], "a E", "N", "x") == (["a ", "", "ENx", ""], None)
    assert run(["END"], "a E", "N", "D b", "c") == (["a ", "", "", "", ""], "END")
    assert run(["END"], "a EN") == (["a ", "EN"], None)


def test_a_stop_string_may_begin_again_inside_itself() -> None:
    assert run(["aab"], "a", "a", "a", "b") == (["", "", "a", "", ""], "aab")


def test_of_several_the_first_complete_one_wins() -> None:
    assert run(["abcd", "bc"], "abcd") == (["a", ""], "bc")
    assert run(["c", "abc"], "xabc") == (["x", ""], "abc")
    assert run(["<|x|>", "\n\n"], "a\n", "\nb<|x|>") == (["a", "", ""], "\n\n")


def test_without_stops_everything_is_shown_at_once() -> None:
    assert run([], "a", "bc") == (["a", "bc", ""], None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="a stop string is empty"):
        StopMatcher(["a", ""])


LETTERS = st.text("ab", max_size=12)


@settings(max_examples=200, deadline=None)
@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.sets(st.integers(0, 12)))
def test_the_outcome_does_not_depend_on_how_the_text_is_cut(text: str, stops: list[str], cuts: set[int]) -> None:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:stop] for start, stop in itertools.pairwise(bounds)]
    whole, by_pieces = run(stops, text), run(stops, *pieces)
    assert ("".join(whole[0]), whole[1]) == ("".join(by_pieces[0]), by_pieces[1])
    if whole[1] is None:
        assert "".join(whole[0]) == text
    else:
        assert text.startswith("".join(whole[0]) + whole[1])
    assert not any(stop in "".join(whole[0]) for stop in stops)
