"""The sample of `manage.py up`: tried again when a worker was left out, and never believed when it differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvasir_site.supervisor import service as supervisor_service
from kvasir_site.supervisor.runner import ServiceFailed
from kvasir_site.supervisor.sample import Sample, SampleRequest
from kvasir_site.supervisor.service import SAMPLE_TRIES, SamplePlan, ServiceUse
from kvasir_site.supervisor.settings import UpSettings
from kvasir_site.supervisor.terminal import Terminal

Use = Callable[..., tuple[ServiceUse, list[str], list[int]]]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Makes (the use, what its terminal said, how many workers each try waited for)."""

    def make(*shares: float, n_workers: int = 2, is_equal: bool = True) -> tuple[ServiceUse, list[str], list[int]]:
        said, waited, left = list[str](), list[int](), list(shares)

        def write(_url: str, _key: str, _request: SampleRequest, _on_text: object) -> Sample:
            share = left.pop(0)
            return Sample("text", 4, 96, share, 0.0, 1.0 - share)

        def check(_sample: Sample, _plan: SamplePlan) -> None:
            if not is_equal:
                raise ServiceFailed("not identical")

        monkeypatch.setattr(supervisor_service, "served_model", lambda _url, _key: "model")
        monkeypatch.setattr(supervisor_service, "wait_for_workers", lambda _url, _key, n, _s: waited.append(n))
        monkeypatch.setattr(supervisor_service, "write_sample", write)
        monkeypatch.setattr(supervisor_service, "check_alone", check)
        settings = UpSettings.from_environ({"KVASIR_LOCAL_WORKERS": str(n_workers)})
        plan = SamplePlan(Path("model.gguf"), "Once", {"max_tokens": 4})
        supervisor = cast(Any, SimpleNamespace())
        return ServiceUse(supervisor, Terminal(said.append), settings, plan, "key"), said, waited

    return make


def test_one_try_is_enough_when_workers_computed_all(use: Use) -> None:
    service, said, waited = use(1.0)
    assert service._show_sample() == "model"
    assert waited == [2] and "identical: the text of 4 tokens" in said[-1]


def test_a_worker_that_was_left_out_may_come_back(use: Use) -> None:
    service, said, waited = use(0.88, 1.0)
    assert service._show_sample() == "model"
    assert waited == [2, 2] and any("once more" in text for text in said)


def test_workers_that_are_late_do_not_stop_a_service_that_is_right(use: Use) -> None:
    service, said, waited = use(*[0.88] * SAMPLE_TRIES)
    assert service._show_sample() == "model"
    assert len(waited) == SAMPLE_TRIES and any("too busy for its workers" in text for text in said)


def test_workers_that_never_compute_anything_are_a_failure(use: Use) -> None:
    service, _, waited = use(*[0.0] * SAMPLE_TRIES)
    with pytest.raises(ServiceFailed, match="workers computed nothing of the sample in 5 tries"):
        service._show_sample()
    assert len(waited) == SAMPLE_TRIES


def test_without_workers_the_backbone_may_compute_all(use: Use) -> None:
    service, _, waited = use(0.0, n_workers=0)
    assert service._show_sample() == "model" and waited == [0]


def test_a_text_that_differs_is_a_failure_at_once(use: Use) -> None:
    service, _, waited = use(0.88, 1.0, is_equal=False)
    with pytest.raises(ServiceFailed, match="not identical"):
        service._show_sample()
    assert len(waited) == 1
