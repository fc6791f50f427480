"""What backbones know of nodes, in SQL. The contracts:

- a state survives its backbone, and comes back as it was;
- a proven lie is never forgotten because another backbone had not heard of it; its evidence is kept once;
- other backbones hear of lies and of releases; without a database no node is taken for new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from backbone.engine.trust.book import TrustBook, TrustKeeper
from backbone.engine.trust.receipts import ReceiptBook
from backbone.engine.trust.standing import TrustPolicy, TrustState, after_good_check, after_lie
from backbone.process.trust_keeper import SqlTrustKeeper, learn
from kvasir.errors import EdgeError
from kvasir.experts import ExpertRange
from market.models.work import Evidence, NodeTrust
from market.nodes import trust_store
from market.nodes.trust_store import SavedTrust, merge
from tests.site.database import database_at
from tests.site.ledger_evidence import MODEL, evidence


@pytest.fixture(autouse=True)
def database(tmp_path: Path) -> Iterator[None]:
    with database_at(tmp_path / "trust.sqlite3"):
        yield


def test_trust_survives_a_restart_of_the_backbone() -> None:
    keeper: TrustKeeper = SqlTrustKeeper()
    assert keeper.load("0123456789abcdef") is None
    state = after_good_check(TrustState(doubt=50), 20)
    keeper.save("0123456789abcdef", state, None)
    assert SqlTrustKeeper().load("0123456789abcdef") == state


def test_evidence_is_kept_once() -> None:
    keeper = SqlTrustKeeper()
    for _ in range(2):
        keeper.save("0123456789abcdef", after_lie(TrustState(), "e1"), evidence("0123456789abcdef"))
    assert Evidence.objects.count() == 1


def test_only_so_much_evidence_is_shown_the_newest_first() -> None:
    for number in range(5):
        facts = evidence("n", f"e{number}", at=float(number)).as_json()
        trust_store.save("n", SavedTrust(failures=number + 1, quarantined=True), facts)
    assert [facts["evidence_id"] for facts in trust_store.evidence_of(["n"], 2)["n"]] == ["e4", "e3"]


def test_workers_at_an_address_are_not_kept() -> None:
    keeper = SqlTrustKeeper()
    keeper.save("10.0.0.1:7000", TrustState(verified=5), None)
    assert (keeper.load("10.0.0.1:7000"), NodeTrust.objects.count()) == (None, 0)


def test_without_a_database_a_node_is_not_taken_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_node_id: str) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(trust_store, "load", fail)
    with pytest.raises(EdgeError, match="cannot be read"):
        SqlTrustKeeper().load("0123456789abcdef")


def test_a_backbone_that_has_not_heard_of_a_lie_does_not_wash_it_away() -> None:
    caught = SavedTrust(failures=1, quarantined=True, evidence_id="e1")
    trust_store.save("n", SavedTrust(verified=5000))
    trust_store.save("n", caught)
    assert trust_store.save("n", SavedTrust(verified=9000)) == caught
    assert trust_store.load("n") == caught


def test_a_lie_that_another_backbone_proved_is_heard_of_and_so_is_a_release() -> None:
    book, receipts = TrustBook(TrustPolicy(proven_after=10), SqlTrustKeeper()), ReceiptBook(MODEL)
    book.change("n", lambda state: after_good_check(state, 20))
    book.change("10.0.0.1:7000", lambda state: after_good_check(state, 20))
    book.save()
    receipts.add_pending("n", Counter({ExpertRange(3, 0, 8): 7}))
    learn(book, receipts, lambda: 5.0)
    assert book.is_proven("n") and receipts.drain() == ()

    SqlTrustKeeper().save("n", after_lie(TrustState(), "e1"), evidence("n"))
    for liars in ([("n", "e1")], []):
        assert learn(book, receipts, lambda: 5.0) == liars
        book.save()
        assert book.state("n") == TrustState(failures=1, quarantined=True, evidence_id="e1")
    (withheld,) = receipts.drain()
    assert (withheld.row_experts, withheld.verified) == (7, False)
    assert withheld.reason == "another backbone proved a lie (evidence e1)"

    trust_store.release("n")
    learn(book, receipts, lambda: 5.0)
    assert book.state("n") == TrustState(failures=1, evidence_id="e1")
    book.change("n", lambda state: after_lie(state, "e2"))
    learn(book, receipts, lambda: 5.0)  # before it is saved: no release from this one
    assert book.state("n").quarantined
    book.save()
    assert trust_store.load("n") == SavedTrust(failures=2, quarantined=True, evidence_id="e2")


def test_an_operator_ends_a_quarantine() -> None:
    caught = SavedTrust(failures=1, quarantined=True, evidence_id="e1")
    trust_store.save("n", caught)
    out = StringIO()
    call_command("release_node", "n", stdout=out)
    assert "after 1 proven lies" in out.getvalue()
    released = SavedTrust(failures=1, evidence_id="e1")
    assert trust_store.load("n") == released
    trust_store.save("n", caught)  # a backbone that runs since before the release
    assert trust_store.load("n") == released
    with pytest.raises(CommandError, match="not in quarantine"):
        call_command("release_node", "n")


states = st.builds(
    SavedTrust,
    verified=st.integers(0, 9),
    failures=st.integers(0, 2),
    quarantined=st.booleans(),
    doubt=st.integers(0, 2),
)


@settings(max_examples=200, deadline=None)
@given(kept=states, state=states)
def test_merging_never_forgets_a_lie_nor_adds_work(kept: SavedTrust, state: SavedTrust) -> None:
    merged = merge(kept, state)
    assert merged.failures == max(kept.failures, state.failures)
    assert merged.verified in {kept.verified, state.verified}
    assert merge(merged, merged) == merged
    if kept.quarantined and state.quarantined:
        assert merged.quarantined


def test_a_failed_save_keeps_neither_state_nor_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(trust_store, "_write", fail)
    with pytest.raises(RuntimeError), transaction.atomic():
        trust_store.save("n", SavedTrust(failures=1), evidence("n").as_json())
    assert (Evidence.objects.count(), NodeTrust.objects.count()) == (0, 0)
