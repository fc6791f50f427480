"""A bounds-checked reader over the bytes of one GGUF header.

`gguf.metadata` and `gguf.header` move it through a mapped file. It never reads past its limit, allocates only what lies
inside that limit, and raises GGUFError for all malformed input.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from mmap import mmap

from kvasir.errors import GGUFError

# Far above all real headers; they bound the time for a hostile one to about a second.
HEADER_MAX_BYTES = 256 << 20
STRING_MAX_BYTES = 16 << 20
ARRAY_MAX_ITEMS = 1 << 22

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(slots=True)
class HeaderCursor:
    """A position in a header. `end` is the first byte that must not be read; `label` names the file in errors."""

    buffer: mmap | bytes
    end: int
    label: str
    position: int = 0
    strings_left: int = 2 * ARRAY_MAX_ITEMS

    def need(self, n_bytes: int, what: str) -> int:
        """Skip `n_bytes` and return where they start. Raises GGUFError if the header ends before."""
        start = self.position
        if n_bytes > self.end - start:
            cause = "the file ends" if self.end < HEADER_MAX_BYTES else "a header must end"
            raise GGUFError(f"{self.label}: {what} at byte {start} needs {n_bytes} bytes, but {cause} at {self.end}")
        self.position = start + n_bytes
        return start

    def u32(self, what: str) -> int:
        """Read a little-endian uint32."""
        start = self.need(4, what)
        return int(_U32.unpack_from(self.buffer, start)[0])

    def u64(self, what: str) -> int:
        """Read a little-endian uint64."""
        start = self.need(8, what)
        return int(_U64.unpack_from(self.buffer, start)[0])

    def raw(self, n_bytes: int, what: str) -> bytes:
        """Read `n_bytes` bytes as a copy."""
        start = self.need(n_bytes, what)
        return self.buffer[start : start + n_bytes]

    def skip_string(self, what: str, max_bytes: int = STRING_MAX_BYTES) -> None:
        """Skip a string: its uint64 length, then the bytes."""
        n_bytes = self.u64(f"the length of {what}")
        if n_bytes > max_bytes:
            raise GGUFError(f"{self.label}: {what} claims {n_bytes} bytes; at most {max_bytes} are allowed")
        self.need(n_bytes, what)

    def string(self, what: str, max_bytes: int = STRING_MAX_BYTES) -> str:
        """Read a UTF-8 string."""
        start = self.position
        self.skip_string(what, max_bytes)
        try:
            return self.buffer[start + 8 : self.position].decode("utf-8")
        except UnicodeDecodeError as error:
            raise GGUFError(f"{self.label}: {what} is not UTF-8 ({error})") from error

    def skip_strings(self, n_strings: int, what: str) -> None:
        """Skip `n_strings` strings. Only their lengths are read: a vocabulary of 250,000 takes about 30 ms."""
        if n_strings > self.strings_left:
            raise GGUFError(f"{self.label}: {what} brings the header above {2 * ARRAY_MAX_ITEMS} array strings")
        self.strings_left -= n_strings
        buffer, position, last_start = self.buffer, self.position, self.end - 8
        unpack = _U64.unpack_from
        for number in range(n_strings):
            if position > last_start:
                raise GGUFError(f"{self.label}: {what} has {n_strings} strings, but the header ends in number {number}")
            position += 8 + unpack(buffer, position)[0]
        if position > self.end:
            raise GGUFError(f"{self.label}: {what} has a string that passes the end of the header at {self.end}")
        self.position = position

    def strings(self, n_strings: int, what: str) -> list[str]:
        """Read `n_strings` strings without checking bounds: call `skip_strings` at the same place before."""
        buffer, position = self.buffer, self.position
        unpack = _U64.unpack_from
        found: list[str] = []
        try:
            for _ in range(n_strings):
                start = position + 8
                position = start + unpack(buffer, position)[0]
                found.append(buffer[start:position].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise GGUFError(f"{self.label}: string {len(found)} of {what} is not UTF-8 ({error})") from error
        self.position = position
        return found
