"""Whatever library computes it, the frames' checksum is zlib's CRC-32."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from kvasir.wire.header import crc32


@given(st.binary(max_size=2000), st.binary(max_size=2000))
def test_it_is_zlibs_value_in_one_piece_and_in_two(head: bytes, tail: bytes) -> None:
    assert crc32(head + tail) == zlib.crc32(head + tail)
    assert crc32(memoryview(tail), crc32(head)) == zlib.crc32(head + tail)
