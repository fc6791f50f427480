"""Byte-level BPE, the `gpt2` kind of GGUF vocabularies, on the `tokenizers` library.

`tokenizer.Tokenizer` builds it. It encodes the plain text between special tokens and never looks for special tokens.
The library's model is built on the first encoding, as decoding and counting do not need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import tokenizers
from tokenizers import models, pre_tokenizers

from backbone.engine.text.pre_tokenizers import PreTokenizer, pre_tokenizer_named
from backbone.engine.text.tokenizer_vocabulary import TokenKind, Vocabulary, string_list
from kvasir.errors import GGUFError


def _byte_by_character() -> dict[str, int]:
    """Return the alphabet of byte-level BPE: printable Latin-1 bytes as themselves, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_BY_CHARACTER = _byte_by_character()


class BpeEncoder:
    """An encoder by the merges of `tokenizer.ggml.merges`, after the cuts of `tokenizer.ggml.pre`."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, object]) -> None:
        """Raise UnsupportedModelError for an unknown pre-tokenizer, GGUFError if the file names none."""
        self._vocabulary = vocabulary
        self._metadata = metadata
        self.pre_tokenizer = bpe_pre_tokenizer(metadata)

    def encode_text(self, text: str, *, after_special: bool) -> list[int]:
        """Encode text that holds no special token. Raises GGUFError for invalid merges."""
        return list(self._model.encode(text, add_special_tokens=False).ids)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; of a special one, its text."""
        text = self._vocabulary.texts[token]
        if self._vocabulary.kinds[token] in {TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN}:
            return text.encode("utf-8", "surrogateescape")
        try:
            return bytes(BYTE_BY_CHARACTER[character] for character in text)
        except KeyError:  # a token outside the byte alphabet stands for itself
            return text.encode("utf-8", "surrogateescape")

    @cached_property
    def _model(self) -> tokenizers.Tokenizer:
        merges: list[tuple[str, str]] = []
        for index, line in enumerate(string_list(self._metadata, "merges")):
            left, blank, right = line.partition(" ")
            if not (left and blank and right):
                raise GGUFError(f"tokenizer.ggml.merges[{index}] is {line!r}; it must be 'LEFT RIGHT'")
            merges.append((left, right))
        return _library_tokenizer(self._vocabulary.id_by_text, merges, self.pre_tokenizer)


def bpe_pre_tokenizer(metadata: Mapping[str, object]) -> PreTokenizer:
    """Return the file's pre-tokenizer. Raises UnsupportedModelError when it is unknown, GGUFError when missing."""
    name = metadata.get("tokenizer.ggml.pre")
    if not isinstance(name, str):
        raise GGUFError(f"tokenizer.ggml.pre is {name!r}; a gpt2 vocabulary must name its pre-tokenizer")
    return pre_tokenizer_named(name)


def _library_tokenizer(
    id_by_text: dict[str, int], merges: list[tuple[str, str]], kind: PreTokenizer
) -> tokenizers.Tokenizer:
    try:
        model = models.BPE(vocab=id_by_text, merges=merges, ignore_merges=kind.ignore_merges)
    except Exception as error:  # the library raises no narrower class
        raise GGUFError(f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}") from error
    tokenizer = tokenizers.Tokenizer(model)
    cuts = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in kind.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    return tokenizer
