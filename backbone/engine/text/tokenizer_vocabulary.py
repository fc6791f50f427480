"""The vocabulary of a GGUF file: token texts, kinds, scores and special ids.

`tokenizer.Tokenizer` reads it once from the `tokenizer.ggml.*` metadata. The checks are here, so encoders need none.
It never encodes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvasir.errors import GGUFError

_PREFIX = "tokenizer.ggml."
_NO_TOKEN = 0xFFFFFFFF

# Texts that end a generation in any vocabulary that has them. Few files list all their ids in the metadata.
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>",
    "<end_of_turn>", "<end_of_utterance>", "</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<｜end▁of▁sentence｜>", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
)  # fmt: skip


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The tokens by id, and the special ids; None where the file has none."""

    texts: Sequence[str]
    kinds: NDArray[np.uint8]  # [n_vocab] of TokenKind
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eog_ids: frozenset[int]

    @cached_property
    def id_by_text(self) -> dict[str, int]:
        """Return the ids of the tokens that plain text can become: all but control, unknown and byte tokens."""
        reachable = ~np.isin(self.kinds, (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.BYTE))
        return {text: token for token, text in enumerate(self.texts) if reachable[token]}

    def ids_of_kind(self, *kinds: TokenKind) -> list[int]:
        """Return all token ids of these kinds, ascending."""
        return [int(token) for token in np.flatnonzero(np.isin(self.kinds, kinds))]


def read_vocabulary(metadata: Mapping[str, object], *, default_ids: Mapping[str, int]) -> Vocabulary:
    """Read and check `tokenizer.ggml.*`; `default_ids` holds the kind's special ids where the file has none.

    Raises GGUFError when a list is missing or has a wrong length or type, or an id is out of range.
    """
    texts = string_list(metadata, "tokens")
    if not texts:
        raise GGUFError("tokenizer.ggml.tokens is empty; a vocabulary needs at least one token")
    kinds = _token_kinds(metadata, len(texts))

    def special_id(name: str) -> int | None:
        return _special_id(metadata, name, default_ids.get(name), len(texts))

    eos_id = special_id("eos")
    end_ids = _ids_of_end_texts(texts)
    # Plain text must never become a token that ends a turn, nor may it be shown, even if the file has another kind.
    kinds[list(end_ids)] = TokenKind.CONTROL
    declared = {token for token in (eos_id, special_id("eot"), special_id("eom")) if token is not None}
    return Vocabulary(texts, kinds, special_id("bos"), eos_id, special_id("unknown"), end_ids | declared)


def string_list(metadata: Mapping[str, object], name: str) -> list[str]:
    """Return the list of strings at `tokenizer.ggml.{name}`. Raises GGUFError when it is missing or of another type."""
    value = metadata.get(_PREFIX + name)
    if not isinstance(value, list):
        raise GGUFError(f"{_PREFIX}{name} is {type(value).__name__}; it must be a list of strings")
    for index, text in enumerate(value):
        if not isinstance(text, str):
            raise GGUFError(f"{_PREFIX}{name}[{index}] is {text!r}; it must be a string")
    return value


def flag(metadata: Mapping[str, object], name: str, default: bool) -> bool:
    """Return the boolean at `tokenizer.ggml.{name}`, or the default. Raises GGUFError when it is of another type."""
    value = metadata.get(_PREFIX + name, default)
    if not isinstance(value, bool):
        raise GGUFError(f"{_PREFIX}{name} is {value!r}; it must be true or false")
    return value


def number_array(metadata: Mapping[str, object], name: str, length: int) -> NDArray[np.float64] | None:
    """Return the numbers at `tokenizer.ggml.{name}`, one a token, or None. Raises GGUFError when they do not match."""
    value = metadata.get(_PREFIX + name)
    if value is None:
        return None
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GGUFError(f"{_PREFIX}{name} must be a list of numbers: {error}") from error
    if numbers.shape != (length,):
        raise GGUFError(f"{_PREFIX}{name} has shape {numbers.shape}; tokens has {length} entries")
    if np.isnan(numbers).any():
        raise GGUFError(f"{_PREFIX}{name}[{np.isnan(numbers).argmax()}] is not a number")
    return numbers


def _token_kinds(metadata: Mapping[str, object], n_vocab: int) -> NDArray[np.uint8]:
    numbers = number_array(metadata, "token_type", n_vocab)
    if numbers is None:
        return np.full(n_vocab, TokenKind.NORMAL, np.uint8)
    odd = np.flatnonzero(~np.isin(numbers, list(TokenKind)))
    if odd.size:
        raise GGUFError(f"{_PREFIX}token_type[{odd[0]}] is {numbers[odd[0]]:g}; it must be 1 to 6")
    return numbers.astype(np.uint8)


def _special_id(metadata: Mapping[str, object], name: str, default: int | None, n_vocab: int) -> int | None:
    key = f"{_PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return default if default is not None and default < n_vocab else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise GGUFError(f"{key} is {value!r}; it must be a token id")
    if value in {_NO_TOKEN, -1}:
        return None
    if not 0 <= value < n_vocab:
        raise GGUFError(f"{key} is {value}; the vocabulary has the ids 0 to {n_vocab - 1}")
    return value


def _ids_of_end_texts(texts: Sequence[str]) -> frozenset[int]:
    known = set(_END_TEXTS)
    by_text = {text: token for token, text in enumerate(texts) if text in known}
    if by_text.keys() >= {"<|return|>", "<|call|>", "<|end|>"}:
        del by_text["<|end|>"]  # in such a vocabulary it ends a message, not the turn
    return frozenset(by_text.values())
