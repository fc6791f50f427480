"""SentencePiece-style BPE, the `llama` kind of GGUF vocabularies: merging by score, with bytes as a fallback.

`tokenizer.Tokenizer` builds it. The best-scored pair of neighbours is merged first, the leftmost of equals. The
`tokenizers` library cannot do this: it orders equal scores otherwise and needs a merge list, which the file lacks.
It never looks for special tokens.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from functools import cached_property

from backbone.engine.text.tokenizer_vocabulary import TokenKind, Vocabulary, flag, number_array
from kvasir.errors import GGUFError

_BLANK = "\u2581"
_BYTE_TEXT = re.compile(r"<0x([0-9A-F]{2})>")


class SpmEncoder:
    """An encoder by the scores of `tokenizer.ggml.scores`."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, object]) -> None:
        """Raise GGUFError when the scores are missing or do not match the tokens."""
        self._vocabulary = vocabulary
        self.add_space_prefix = flag(metadata, "add_space_prefix", default=True)
        scores = number_array(metadata, "scores", len(vocabulary.texts))
        if scores is None:
            raise GGUFError("tokenizer.ggml.scores is missing; a llama vocabulary needs a score for each token")
        self._scores = scores

    def encode_text(self, text: str, *, after_special: bool) -> list[int]:
        """Encode text that holds no special token; after a special one a space goes before it, if the file asks so."""
        if self.add_space_prefix and after_special:
            text = " " + text
        ids: list[int] = []
        for piece in self._merge(text.replace(" ", _BLANK)):
            token = self._vocabulary.id_by_text.get(piece)
            if token is None:
                ids.extend(self._byte_token(byte) for byte in piece.encode())
            else:
                ids.append(token)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; of a special one, its text."""
        text = self._vocabulary.texts[token]
        kind = self._vocabulary.kinds[token]
        if kind == TokenKind.BYTE and (match := _BYTE_TEXT.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if kind == TokenKind.NORMAL:
            text = text.replace(_BLANK, " ")
        return text.encode("utf-8", "surrogateescape")

    def _merge(self, text: str) -> list[str]:
        """Cut text into characters, then merge the best-scored neighbours as long as two make a token."""
        pieces = list(text)
        previous = list(range(-1, len(pieces) - 1))
        following = list(range(1, len(pieces) + 1))
        candidates: list[tuple[float, int, int, str]] = []  # (-score, left, right, union); stale ones are skipped

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < len(pieces):
                union = pieces[left] + pieces[right]
                token = self._vocabulary.id_by_text.get(union)
                if token is not None:
                    heapq.heappush(candidates, (-self._scores[token], left, right, union))

        for right in range(1, len(pieces)):
            offer(right - 1, right)
        while candidates:
            _, left, right, union = heapq.heappop(candidates)
            if not pieces[left] or not pieces[right] or len(pieces[left]) + len(pieces[right]) != len(union):
                continue
            pieces[left], pieces[right] = union, ""
            following[left] = following[right]
            if following[right] < len(pieces):
                previous[following[right]] = left
            offer(previous[left], left)
            offer(left, following[left])
        return [piece for piece in pieces if piece]

    @cached_property
    def _byte_tokens(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for token in self._vocabulary.ids_of_kind(TokenKind.BYTE):
            if match := _BYTE_TEXT.fullmatch(self._vocabulary.texts[token]):
                found[int(match[1], 16)] = token
        return found

    def _byte_token(self, byte: int) -> int:
        token = self._byte_tokens.get(byte, self._vocabulary.unknown_id)
        if token is None:
            raise GGUFError(f"the vocabulary has no token for byte 0x{byte:02X} and no unknown token")
        return token
