"""The codec of the pages: on the same golden frames as Python's, and of one mind with it about damaged ones."""

from __future__ import annotations

import base64
import json
import random
import zlib
from pathlib import Path

from kvasir.errors import WireError
from kvasir.wire.codec import decode, encode, join
from kvasir.wire.header import HEADER_BYTES
from tests.browser.node_tests import run_node_tests
from tests.golden.make_wire import GOLDEN, build

SMALL = [data for data in (build(kind, fields) for _, kind, fields in GOLDEN[:24]) if len(data) < 4096]
N_DAMAGED = 4000


def damaged(chance: random.Random) -> bytes:
    """A golden frame with a few bytes changed, cut or added; half of them with the checksum of their new bytes."""
    data = bytearray(chance.choice(SMALL))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data))
        data[at] = chance.choice([chance.randrange(256), data[at] ^ 1 << chance.randrange(8), 0, 255])
    if chance.random() < 0.2:
        data = data[: chance.randrange(len(data) + 1)] + chance.randbytes(chance.randrange(4))
    if chance.random() < 0.2 and len(data) >= HEADER_BYTES:
        data[28:32] = (len(data) - HEADER_BYTES).to_bytes(4, "little")
    if chance.random() < 0.7 and len(data) >= HEADER_BYTES:
        data[32:36] = zlib.crc32(data[HEADER_BYTES:], zlib.crc32(data[:32])).to_bytes(4, "little")
    return bytes(data)


def verdict(data: bytes) -> str:
    """The bytes that Python writes again after reading these, or nothing when it refuses them."""
    try:
        return base64.b64encode(join(encode(decode(data)))).decode()
    except WireError:
        return ""


def test_javascript_writes_and_reads_the_golden_bytes() -> None:
    run_node_tests("wire_golden.test.mjs", len(GOLDEN) + 16 + 8)  # the lengths, and the others


def test_both_codecs_read_and_refuse_the_same_bytes(tmp_path: Path) -> None:
    chance = random.Random(20)
    frames = [*SMALL, *(damaged(chance) for _ in range(N_DAMAGED))]
    cases = [[base64.b64encode(data).decode(), verdict(data)] for data in frames]
    n_read = sum(bool(again) for _, again in cases)
    assert len(SMALL) + N_DAMAGED / 20 < n_read < N_DAMAGED  # many of either sort
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    run_node_tests("wire_hostile.test.mjs", 6, environment={"KVASIR_TEST_CASES": str(tmp_path / "cases.json")})
