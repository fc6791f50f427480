"""CRC-32 of frames, as zlib defines it, by the fastest library at hand.

The wire's codec calls it for every byte of every frame, twice. isal computes the same value many times faster than
zlib with the carry-less multiplication of current processors; where its wheel is not to be had, zlib serves.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
