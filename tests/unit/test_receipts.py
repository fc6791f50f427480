"""Receipts: what is verified is counted once, what a lie leaves unvouched is withheld, and traffic is counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.trust.exposure import ExposureBook
from backbone.engine.trust.receipts import DAY_S, UNCHECKED, Receipt, ReceiptBook, TrafficCounter, work_by_range
from kvasir.experts import ExpertRange

LOW, HIGH = ExpertRange(3, 0, 8), ExpertRange(3, 8, 16)


def totals(receipts: tuple[Receipt, ...]) -> tuple[int, int]:
    paid = sum(r.row_experts for r in receipts if r.verified)
    return paid, sum(r.row_experts for r in receipts if not r.verified)


def test_confirmed_work_is_summed_by_range_and_day() -> None:
    book = ReceiptBook("model")
    book.add_verified("n", Counter({LOW: 3, HIGH: 1}), at=10.0)
    book.add_verified("n", Counter({LOW: 2}), at=20.0)
    book.add_verified("n", Counter({LOW: 5}), at=DAY_S + 1.0)
    assert set(book.drain()) == {
        Receipt("n", "model", 3, 0, 8, 5, 20.0),
        Receipt("n", "model", 3, 8, 16, 1, 10.0),
        Receipt("n", "model", 3, 0, 8, 5, DAY_S + 1.0),
    }
    assert book.drain() == ()


def test_a_check_vouches_for_what_came_before_its_sample_and_no_more() -> None:
    book = ReceiptBook("model")
    book.add_pending("n", Counter({LOW: 3}))
    book.cut("n", 1)
    book.add_pending("n", Counter({LOW: 4}))
    assert book.drain() == ()
    book.vouch("n", 1, at=5.0)
    assert totals(book.drain()) == (3, 0)
    assert book.n_pending("n") == 4
    assert book.withhold("n", 6.0, "lied") == 4
    (receipt,) = book.drain()
    assert (receipt.verified, receipt.row_experts, receipt.reason) == (False, 4, "lied")
    book.vouch("n", 2, at=7.0)  # too late: nothing is pending any more
    assert book.drain() == ()


def test_what_waits_when_the_process_stops_is_listed_as_unpaid() -> None:
    book = ReceiptBook("model")
    book.add_pending("n", Counter({LOW: 3}))
    book.add_pending("m", Counter({HIGH: 2}))
    book.give_up(at=9.0)
    assert {(r.node_id, r.row_experts, r.verified, r.reason) for r in book.drain()} == {
        ("n", 3, False, UNCHECKED),
        ("m", 2, False, UNCHECKED),
    }
    assert book.n_pending("n") == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("vpckw"), st.integers(1, 9)), max_size=60))
def test_no_work_is_lost_or_counted_twice(events: list[tuple[str, int]]) -> None:
    book, done, number = ReceiptBook("model"), 0, 0
    drained: list[Receipt] = []
    for kind, n_pairs in events:
        if kind == "v":
            book.add_verified("n", Counter({LOW: n_pairs}), 1.0)
            done += n_pairs
        elif kind == "p":
            book.add_pending("n", Counter({LOW: n_pairs}))
            done += n_pairs
        elif kind == "c":
            number += 1
            book.cut("n", number)
        elif kind == "k":
            book.vouch("n", max(number - n_pairs, 0), 1.0)
        else:
            book.withhold("n", 1.0, "lied")
            drained += book.drain()
    drained += book.drain()
    assert sum(totals(tuple(drained))) + book.n_pending("n") == done


def test_work_belongs_to_the_range_that_has_the_expert() -> None:
    ids = np.asarray([1, 9, 15, 20, 1], np.int32)
    held = (LOW, HIGH, ExpertRange(4, 0, 30))
    assert work_by_range(held, 3, ids) == {LOW: 2, HIGH: 2, ExpertRange(3, 20, 21): 1}
    assert work_by_range((LOW,), 3, ids[:1]) == {LOW: 1}


def test_traffic_counts_calls_since_the_last_look() -> None:
    traffic = TrafficCounter(2, 4)
    traffic.add(1, np.asarray([[0, 3], [3, 1]], np.int32))
    traffic.add(0, np.asarray([[2, 3]], np.int32))
    assert traffic.take().tolist() == [[0, 0, 1, 1], [1, 1, 0, 2]]
    assert traffic.take().sum() == 0


def test_a_lie_flags_the_requests_that_used_unconfirmed_answers_of_its_teller() -> None:
    book = ExposureBook()
    book.note("liar", ["a", "b"])
    book.note("honest", ["b", "c"])
    flagged = book.flag("liar", "e1")
    assert (flagged.request_ids, flagged.is_complete) == (("a", "b"), True)
    assert (book.evidence_of("b"), book.evidence_of("c")) == (("e1",), ())
    assert book.unconfirmed_workers("b") == ("honest", "liar")
    assert (book.flags_of("b"), book.flags_of("c")) == ({"e1": "liar"}, {})


def test_the_oldest_requests_are_forgotten_and_that_is_said() -> None:
    book = ExposureBook(max_requests=2)
    for request in "abc":
        book.note("liar", [request])
    flagged = book.flag("liar", "e1")
    assert (flagged.request_ids, flagged.is_complete) == (("b", "c"), False)
