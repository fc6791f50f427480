"""Text to token ids and back, from the `tokenizer.ggml.*` metadata of a GGUF file.

It finds special tokens in the text, passes the text between them to the BPE or SPM encoder, and adds the tokens that
begin and end a text. Ids equal llama.cpp's for the same file, except that plain text never becomes a control token here
unless the caller asks for it with `parse_special`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Protocol

from backbone.engine.text.tokenizer_bpe import BpeEncoder, bpe_pre_tokenizer
from backbone.engine.text.tokenizer_spm import SpmEncoder
from backbone.engine.text.tokenizer_vocabulary import TokenKind, Vocabulary, flag, read_vocabulary
from kvasir.errors import GGUFError, RequestError, UnsupportedModelError

_SPECIAL_KINDS = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)


class TextEncoder(Protocol):
    """The part of a tokenizer that differs between the kinds of vocabulary."""

    def encode_text(self, text: str, *, after_special: bool) -> list[int]:
        """Encode text that holds no special token."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token."""
        ...


class Tokenizer:
    """One model's tokenizer. Immutable and thread-safe."""

    def __init__(
        self, vocabulary: Vocabulary, encoder: TextEncoder, *, add_bos: bool, add_eos: bool, strip: bool
    ) -> None:
        """Use `from_metadata`. `strip`: encoding puts a space before text, which decoding removes."""
        if add_bos and vocabulary.bos_id is None:
            raise GGUFError("tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id")
        if add_eos and vocabulary.eos_id is None:
            raise GGUFError("tokenizer.ggml.add_eos_token is true, but there is no tokenizer.ggml.eos_token_id")
        self.vocabulary = vocabulary
        self.add_bos = add_bos
        self.add_eos = add_eos
        self._encoder = encoder
        self._strip = strip

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build from GGUF metadata. Raises UnsupportedModelError for an unknown kind, GGUFError for an invalid one."""
        kind = metadata.get("tokenizer.ggml.model")
        if kind == "gpt2":
            return cls._bpe(metadata)
        if kind == "llama":
            return cls._spm(metadata)
        if kind is None:
            raise GGUFError("the file has no tokenizer.ggml.model, hence no vocabulary")
        raise UnsupportedModelError(f"tokenizer.ggml.model is {kind!r}; supported are 'gpt2' (BPE) and 'llama' (SPM)")

    @classmethod
    def _bpe(cls, metadata: Mapping[str, object]) -> Tokenizer:
        pre_tokenizer = bpe_pre_tokenizer(metadata)
        if not pre_tokenizer.has_bos:
            metadata = {key: metadata[key] for key in metadata if key.startswith("tokenizer.")}
            metadata.pop("tokenizer.ggml.bos_token_id", None)
        vocabulary = read_vocabulary(metadata, default_ids={})
        return cls(
            vocabulary,
            BpeEncoder(vocabulary, metadata),
            add_bos=flag(metadata, "add_bos_token", default=pre_tokenizer.add_bos),
            add_eos=flag(metadata, "add_eos_token", default=False),
            strip=False,
        )

    @classmethod
    def _spm(cls, metadata: Mapping[str, object]) -> Tokenizer:
        vocabulary = read_vocabulary(metadata, default_ids={"unknown": 0, "bos": 1, "eos": 2})
        encoder = SpmEncoder(vocabulary, metadata)
        return cls(
            vocabulary,
            encoder,
            add_bos=flag(metadata, "add_bos_token", default=True),
            add_eos=flag(metadata, "add_eos_token", default=False),
            strip=encoder.add_space_prefix,
        )

    @property
    def n_vocab(self) -> int:
        """Return the number of tokens."""
        return len(self.vocabulary.texts)

    @property
    def bos_id(self) -> int | None:
        """Return the token that begins a text, or None."""
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """Return the token that ends a text, or None."""
        return self.vocabulary.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """Return all tokens that end a generation: end of text, of turn, of message."""
        return self.vocabulary.eog_ids

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of a text.

        `add_special` adds the model's tokens at the beginning and the end. With `parse_special` control tokens that are
        spelt out in the text (as in a rendered chat template) become those tokens; user-defined tokens always do.
        Raises RequestError when the text holds a lone surrogate, which no encoding can represent.
        """
        _check_encodable(text)
        ids: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        after_special = True
        for piece in self._split_specials(text, parse_special=parse_special):
            if isinstance(piece, int):
                ids.append(piece)
                after_special = True
            else:
                ids.extend(self._encoder.encode_text(piece, after_special=after_special))
                after_special = False
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of a whole encoded text; bytes that are not UTF-8 become U+FFFD.

        This is the inverse of `encode`, so it removes the spaces that an SPM encoder puts before text. For text that
        continues another, use `detokenizer.IncrementalDetokenizer`.
        """
        parts: list[bytes] = []
        after_special = True
        for token in ids:
            shown = self.shown_bytes(token, skip_special=skip_special)
            is_special = self.vocabulary.kinds[token] in _SPECIAL_KINDS
            if self._strip and after_special and not is_special:
                shown = shown.removeprefix(b" ")
            after_special = is_special
            parts.append(shown)
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; of a special one, its text. Raises RequestError for an unknown id."""
        if not 0 <= token < self.n_vocab:
            raise RequestError(f"token id {token} is not in the vocabulary; ids go from 0 to {self.n_vocab - 1}")
        return self._encoder.token_bytes(token)

    def shown_bytes(self, token: int, *, skip_special: bool) -> bytes:
        """Return `token_bytes`, but nothing for a control or unknown token with `skip_special`."""
        shown = self.token_bytes(token)
        hidden = skip_special and self.vocabulary.kinds[token] in {TokenKind.CONTROL, TokenKind.UNKNOWN}
        return b"" if hidden else shown

    @cached_property
    def _specials(self) -> list[tuple[str, int, bool]]:
        """Return (text, id, is user-defined) of every special token, longest first, ties by id."""
        kinds = self.vocabulary.kinds
        ids = self.vocabulary.ids_of_kind(*_SPECIAL_KINDS)
        found = [(self.vocabulary.texts[token], token, bool(kinds[token] == TokenKind.USER_DEFINED)) for token in ids]
        return sorted((entry for entry in found if entry[0]), key=lambda entry: (-len(entry[0].encode()), entry[1]))

    def _split_specials(self, text: str, *, parse_special: bool) -> list[str | int]:
        """Cut text at special tokens: first at the longest, then at the next longest in the rest, and so on."""
        pieces: list[str | int] = [text] if text else []
        for special, token, user_defined in self._specials:
            if special in text and (parse_special or user_defined):
                pieces = [part for piece in pieces for part in _cut(piece, special, token)]
        return pieces


def _cut(piece: str | int, special: str, token: int) -> list[str | int]:
    if isinstance(piece, int) or special not in piece:
        return [piece]
    parts: list[str | int] = []
    for index, between in enumerate(piece.split(special)):
        if index:
            parts.append(token)
        if between:
            parts.append(between)
    return parts


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = ord(text[error.start])
        raise RequestError(f"the text holds a lone surrogate U+{bad:04X} at character {error.start}") from None
