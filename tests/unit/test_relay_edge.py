"""The relay's bookkeeping of one edge: credit, who owes what, and frames out of place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.kernels.api import RowFormat
from kvasir.wire.codec import encode, join
from kvasir.wire.frames import Dispatch, SumOrder, SumResult
from kvasir.wire.header import HEADER, HEADER_BYTES, MAGIC, VERSION, Kind, sums_bytes
from relay.sockets.bridge import MAX_NOTICES, EdgeBrokenError, EdgeLedger, FrameFacts, Passage, read_facts

CREDIT = 1000


def dispatch(request: int, payload: int = 100, values: int = 25) -> FrameFacts:
    return FrameFacts(Kind.DISPATCH, request, payload + 8, payload, 4 * values)


def result(request: int, payload: int = 100) -> FrameFacts:
    return FrameFacts(Kind.RESULT, request, payload, 0, 0)


def plain(kind: Kind, request: int = 0) -> FrameFacts:
    return FrameFacts(kind, request, 10, 0, 0)


def bridged() -> EdgeLedger:
    ledger = EdgeLedger(7, CREDIT)
    assert ledger.from_worker(plain(Kind.WELCOME)) is Passage.FORWARD
    return ledger


def test_credit_is_rows_and_answers_under_way() -> None:
    ledger = bridged()
    for request in range(1, 6):
        assert ledger.from_backbone(dispatch(request)) is Passage.FORWARD
    assert ledger.used_bytes == CREDIT
    assert ledger.from_backbone(dispatch(6)) is Passage.BUSY
    assert ledger.traffic.n_refused_busy == 1
    assert ledger.from_worker(result(3)) is Passage.FORWARD
    assert ledger.from_backbone(dispatch(6)) is Passage.FORWARD
    assert ledger.n_owed == 5


def test_one_request_of_any_size_is_always_allowed() -> None:
    ledger = bridged()
    assert ledger.from_backbone(dispatch(1, payload=50 * CREDIT)) is Passage.FORWARD
    assert ledger.from_backbone(dispatch(2, payload=1, values=1)) is Passage.BUSY


def test_faults_answer_too() -> None:
    ledger = bridged()
    ledger.from_backbone(dispatch(7))
    assert ledger.from_worker(plain(Kind.FAULT, 7)) is Passage.FORWARD
    assert (ledger.n_owed, ledger.used_bytes) == (0, 0)


@pytest.mark.parametrize("facts", [result(2), plain(Kind.FAULT, 2)])
def test_an_answer_that_nobody_asked_for_breaks_the_edge(facts: FrameFacts) -> None:
    ledger = bridged()
    ledger.from_backbone(dispatch(1))
    with pytest.raises(EdgeBrokenError, match="request 2, which it does not owe"):
        ledger.from_worker(facts)


def test_an_answer_given_twice_breaks_the_edge() -> None:
    ledger = bridged()
    ledger.from_backbone(dispatch(1))
    ledger.from_worker(result(1))
    with pytest.raises(EdgeBrokenError, match="does not owe"):
        ledger.from_worker(result(1))


def test_an_answer_larger_than_owed_breaks_the_edge() -> None:
    ledger = bridged()
    ledger.from_backbone(dispatch(1))
    with pytest.raises(EdgeBrokenError, match="has 101 bytes, the worker owes 100"):
        ledger.from_worker(result(1, payload=101))


@pytest.mark.parametrize("request_number", [0, 1])
def test_a_request_number_in_use_or_zero_breaks_the_edge(request_number: int) -> None:
    ledger = bridged()
    ledger.from_backbone(dispatch(1))
    with pytest.raises(EdgeBrokenError, match=f"request number {request_number}"):
        ledger.from_backbone(dispatch(request_number))


def test_nothing_but_an_answer_to_the_hello_comes_first() -> None:
    for kind in (Kind.RESULT, Kind.PAUSE, Kind.GOAWAY, Kind.PING):
        with pytest.raises(EdgeBrokenError):
            EdgeLedger(7, CREDIT).from_worker(plain(kind))
    with pytest.raises(EdgeBrokenError, match="before the worker's welcome"):
        EdgeLedger(7, CREDIT).from_backbone(dispatch(1))
    assert EdgeLedger(7, CREDIT).from_worker(plain(Kind.REFUSE)) is Passage.LAST


@pytest.mark.parametrize("kind", [Kind.WELCOME, Kind.REFUSE, Kind.HELLO, Kind.DISPATCH, Kind.PING, Kind.PONG, 99])
def test_workers_cannot_send_what_is_not_theirs(kind: int) -> None:
    with pytest.raises(EdgeBrokenError, match="not its turn"):
        bridged().from_worker(FrameFacts(kind, 0, 0, 0, 0))


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.WELCOME, Kind.REFUSE, Kind.RESULT, Kind.PAUSE, Kind.PING, 0])
def test_backbones_cannot_send_what_is_not_theirs(kind: int) -> None:
    with pytest.raises(EdgeBrokenError, match="does not carry to a worker"):
        bridged().from_backbone(FrameFacts(kind, 0, 0, 0, 0))


def test_a_fault_with_number_zero_is_the_last_frame_of_either_side() -> None:
    assert bridged().from_worker(plain(Kind.FAULT)) is Passage.LAST
    assert bridged().from_backbone(plain(Kind.FAULT)) is Passage.LAST


@pytest.mark.parametrize("side", ["worker", "backbone"])
def test_notices_without_end_break_the_edge(side: str) -> None:
    ledger = bridged()
    send = ledger.from_worker if side == "worker" else ledger.from_backbone
    for _ in range(MAX_NOTICES):
        send(plain(Kind.GOAWAY))
    with pytest.raises(EdgeBrokenError, match=f"the {side} sent one notice too many"):
        send(plain(Kind.GOAWAY))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8), st.integers(1, 300), st.integers(1, 80)), max_size=60))
def test_bytes_under_way_never_exceed_the_credit_and_return_to_zero(steps: list[tuple[bool, int, int, int]]) -> None:
    ledger, owed = bridged(), dict[int, int]()
    for is_request, number, payload, values in steps:
        if is_request and number not in owed:
            alone = not owed
            passage = ledger.from_backbone(dispatch(number, payload, values))
            if passage is Passage.FORWARD:
                owed[number] = payload + 4 * values
                assert alone or ledger.used_bytes <= CREDIT  # one request of any size is allowed
        elif not is_request and number in owed:
            del owed[number]
            ledger.from_worker(FrameFacts(Kind.RESULT, number, 0, 0, 0))
        assert ledger.used_bytes == sum(owed.values())


def header(**changes: int | bytes) -> bytes:
    fields: dict[str, int | bytes] = {"magic": MAGIC, "version": VERSION, "kind": 4, "payload": 3}
    fields |= changes
    return HEADER.pack(fields["magic"], fields["version"], fields["kind"], 1, 0, 9, 0, 1, 2, 5, fields["payload"], 0)


def test_facts_are_the_headers() -> None:
    data = b"....." + header() + b"abc"
    assert read_facts(data, 5, len(data)) == FrameFacts(4, 9, 3, 0, 40)


def facts_of(frame: Dispatch | SumResult) -> FrameFacts:
    data = join(encode(frame))
    return read_facts(data, 0, len(data))


def for_sums(request: int, n_rows: int, n_pairs: int) -> Dispatch:
    pairs, rows = np.zeros(n_pairs, np.int32), np.zeros((n_rows, 261), np.uint8)
    order = SumOrder(np.ones(n_pairs, np.float32), np.zeros(n_rows, np.int32))
    return Dispatch(request, 0, RowFormat.KX1, 256, rows, pairs, pairs, sums=order)


@pytest.mark.parametrize(("n_rows", "n_pairs"), [(1, 1), (3, 31), (5, 2)])
def test_of_sums_the_rows_count_and_the_most_that_they_may_have(n_rows: int, n_pairs: int) -> None:
    payload = 12 * n_pairs + 4 * n_rows + 261 * n_rows
    wanted = FrameFacts(Kind.DISPATCH, 9, payload, 261 * n_rows, sums_bytes(n_rows, 256))
    assert facts_of(for_sums(9, n_rows, n_pairs)) == wanted


@pytest.mark.parametrize("value", [0, 1, 1000, 2**31 - 1])
def test_sums_may_be_as_large_as_the_most_and_no_byte_larger(value: int) -> None:
    answer = facts_of(SumResult(9, 0, 4, np.full((2, 256), value, np.int32)))
    assert answer.payload_bytes <= sums_bytes(2, 256)
    ledger = EdgeLedger(7, 1 << 20)
    ledger.from_worker(plain(Kind.WELCOME))
    ledger.from_backbone(facts_of(for_sums(9, 2, 4)))
    assert ledger.used_bytes == 2 * 261 + sums_bytes(2, 256)
    assert ledger.from_worker(answer) is Passage.FORWARD
    assert (ledger.used_bytes, ledger.n_owed) == (0, 0)
    ledger.from_backbone(facts_of(for_sums(10, 2, 4)))
    assert ledger.from_worker(result(10, sums_bytes(2, 256))) is Passage.FORWARD
    ledger.from_backbone(facts_of(for_sums(11, 2, 4)))
    with pytest.raises(EdgeBrokenError, match="has 2051 bytes, the worker owes 2050"):
        ledger.from_worker(result(11, sums_bytes(2, 256) + 1))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header()[:-1], f"the header alone has {HEADER_BYTES}"),
        (b"", "frame of 0 bytes"),
        (header(magic=b"KVSX") + b"abc", "starts with b'KVSX'"),
        (header(version=9) + b"abc", "wire version 9"),
        (header() + b"abcd", "says 3 payload bytes, it has 4"),
        (header() + b"ab", "says 3 payload bytes, it has 2"),
    ],
)
def test_bytes_that_are_no_frame_break_the_edge(data: bytes, reason: str) -> None:
    with pytest.raises(EdgeBrokenError, match=reason):
        read_facts(data, 0, len(data))


def test_requests_alone_may_take_half_the_credit() -> None:
    ledger = bridged()
    assert ledger.from_backbone(dispatch(1, payload=CREDIT // 2 - 100, values=1)) is Passage.FORWARD
    assert ledger.from_backbone(dispatch(2, payload=101, values=1)) is Passage.BUSY
    assert ledger.from_backbone(dispatch(2, payload=100, values=1)) is Passage.FORWARD
    ledger.from_worker(FrameFacts(Kind.RESULT, 1, 4, 0, 0))
    assert ledger.from_backbone(dispatch(3, payload=300, values=1)) is Passage.FORWARD
