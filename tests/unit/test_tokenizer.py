"""What the tokenizer promises by itself: round trips, safe control tokens, refusals by name. Ids: see *_llama_cpp."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.text.tokenizer import Tokenizer
from kvasir.errors import GGUFError, RequestError, UnsupportedModelError
from tests.oracles.tiny_vocabulary import CONTROLS, USER_DEFINED, bpe_metadata, spm_metadata

KINDS = ("gpt-2", "qwen2", "qwen35", "llama-bpe", "default", "spm")


@functools.cache
def metadata_of(kind: str) -> dict[str, object]:
    return spm_metadata() if kind == "spm" else bpe_metadata(kind)


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer.from_metadata(metadata_of(kind))


def changed(kind: str, **values: object) -> dict[str, object]:
    """Metadata with some values replaced; None removes one."""
    metadata = metadata_of(kind) | {f"tokenizer.ggml.{name}": value for name, value in values.items()}
    return {key: value for key, value in metadata.items() if value is not None}


TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6), st.sampled_from([*CONTROLS, *USER_DEFINED])
    )
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(text=TEXTS, parse_special=st.booleans())
def test_decoding_gives_back_what_was_encoded(kind: str, text: str, parse_special: bool) -> None:
    text = text.replace("\u2581", "_")  # SPM cannot tell it from a blank
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    assert tokenizer.decode(ids, skip_special=False) == text
    if kind != "spm":  # there, a blank goes before text
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


@pytest.mark.parametrize("kind", KINDS)
def test_text_becomes_a_control_token_only_when_asked(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    control = "[INST]" if kind == "spm" else "<|im_start|>"
    token = tokenizer.vocabulary.texts.index(control)
    assert token in tokenizer.encode(f"a{control}b", add_special=False, parse_special=True)
    assert token not in tokenizer.encode(f"a{control}b", add_special=False, parse_special=False)
    assert tokenizer.encode("<think>", add_special=False, parse_special=False)[-1] == tokenizer.vocabulary.texts.index(
        "<think>"
    )


def test_pieces_cannot_merge_into_a_control_token() -> None:
    """With a token `s>` in the vocabulary, merging by score alone would make `<s>` of plain text."""
    metadata = metadata_of("spm")
    texts, kinds, scores = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "scores"))
    assert isinstance(texts, list)
    assert isinstance(kinds, list)
    assert isinstance(scores, list)
    tokenizer = Tokenizer.from_metadata(
        changed("spm", tokens=[*texts, "s>"], token_type=[*kinds, 1], scores=[*scores, 9.0])
    )
    ids = tokenizer.encode("<s>", add_special=False, parse_special=False)
    assert len(texts) in ids
    assert tokenizer.bos_id not in ids


def test_begin_and_end_tokens_are_added_as_the_file_says() -> None:
    tokenizer = Tokenizer.from_metadata(changed("qwen2", add_bos_token=True, add_eos_token=True))
    plain = tokenizer.encode("Once", add_special=False, parse_special=False)
    assert tokenizer.encode("Once", add_special=True, parse_special=False) == [
        tokenizer.bos_id,
        *plain,
        tokenizer.eos_id,
    ]
    assert tokenizer_of("qwen2").encode("Once", add_special=True, parse_special=False) == plain
    assert tokenizer_of("llama-bpe").encode("", add_special=True, parse_special=False) == [
        tokenizer_of("llama-bpe").bos_id
    ]


def test_glm4_has_no_begin_token_whatever_the_file_says() -> None:
    assert Tokenizer.from_metadata(bpe_metadata("glm4")).bos_id is None


def test_ends_of_generation_are_found_by_id_and_by_text() -> None:
    tokenizer = Tokenizer.from_metadata(changed("qwen2", eot_token_id=5))
    texts = tokenizer.vocabulary.texts
    assert tokenizer.eog_ids == {5, tokenizer.eos_id, texts.index("<|im_end|>"), texts.index("<|endoftext|>")}


def test_control_tokens_are_shown_only_when_asked() -> None:
    tokenizer = tokenizer_of("qwen2")
    ids = tokenizer.encode("<|im_start|>Hi<|im_end|>", add_special=False, parse_special=True)
    assert tokenizer.decode(ids) == "Hi"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>Hi<|im_end|>"


def test_broken_bytes_decode_to_the_replacement_character() -> None:
    tokenizer = tokenizer_of("qwen2")
    first_byte = next(t for t in range(tokenizer.n_vocab) if tokenizer.token_bytes(t) == b"\xf0")
    assert tokenizer.decode([first_byte]) == "\ufffd"


def test_a_byte_without_a_token_becomes_the_unknown_token() -> None:
    metadata = metadata_of("spm")
    kinds = [1 if kind == 6 else kind for kind in metadata["tokenizer.ggml.token_type"]]  # type: ignore[attr-defined]
    tokenizer = Tokenizer.from_metadata(changed("spm", token_type=kinds, add_space_prefix=False))
    assert tokenizer.encode("\x07", add_special=False, parse_special=False) == [0]


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+D800 at character 2"):
        tokenizer_of("gpt-2").encode("ab\ud800", add_special=False, parse_special=False)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_unknown_ids_are_refused(token: int) -> None:
    with pytest.raises(RequestError, match=f"token id {token} is not in the vocabulary"):
        tokenizer_of("gpt-2").decode([token])


@pytest.mark.parametrize(
    ("kind", "values", "error", "expected"),
    [
        ("gpt-2", {"model": "bert"}, UnsupportedModelError, "tokenizer.ggml.model is 'bert'"),
        ("gpt-2", {"model": None}, GGUFError, "no tokenizer.ggml.model"),
        ("gpt-2", {"pre": "superbpe"}, UnsupportedModelError, "tokenizer.ggml.pre is 'superbpe'"),
        ("gpt-2", {"pre": None}, GGUFError, "must name its pre-tokenizer"),
        ("gpt-2", {"tokens": None}, GGUFError, "tokenizer.ggml.tokens is NoneType"),
        ("gpt-2", {"tokens": []}, GGUFError, "tokenizer.ggml.tokens is empty"),
        ("gpt-2", {"tokens": ["a", 7], "token_type": None}, GGUFError, r"tokens\[1\] is 7"),
        ("gpt-2", {"token_type": [1, 1]}, GGUFError, "token_type has shape"),
        ("gpt-2", {"tokens": ["a"], "token_type": [9]}, GGUFError, r"token_type\[0\] is 9; it must be 1 to 6"),
        ("gpt-2", {"eos_token_id": 10**6}, GGUFError, "eos_token_id is 1000000; the vocabulary has"),
        ("gpt-2", {"eos_token_id": "2"}, GGUFError, "eos_token_id is '2'; it must be a token id"),
        ("gpt-2", {"add_bos_token": 1}, GGUFError, "add_bos_token is 1; it must be true or false"),
        ("gpt-2", {"add_bos_token": True, "bos_token_id": 0xFFFFFFFF}, GGUFError, "no tokenizer.ggml.bos_token_id"),
        ("gpt-2", {"add_eos_token": True, "eos_token_id": None}, GGUFError, "no tokenizer.ggml.eos_token_id"),
        ("spm", {"scores": None}, GGUFError, "scores is missing"),
        ("spm", {"scores": [0.0]}, GGUFError, "scores has shape"),
        ("spm", {"scores": ["a"]}, GGUFError, "scores must be a list of numbers"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    kind: str, values: dict[str, object], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        Tokenizer.from_metadata(changed(kind, **values))


@pytest.mark.parametrize(
    ("merges", "expected"),
    [(None, "merges is NoneType"), (["ab"], r"merges\[0\] is 'ab'"), (["zq qz"], "merges do not fit")],
)
def test_merges_that_do_not_fit_are_refused_at_the_first_encoding(merges: object, expected: str) -> None:
    tokenizer = Tokenizer.from_metadata(changed("gpt-2", merges=merges))
    assert tokenizer.decode([1])  # decoding does not need them
    with pytest.raises(GGUFError, match=expected):
        tokenizer.encode("x", add_special=False, parse_special=False)
