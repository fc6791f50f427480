"""What browser tests share: the static site for kernels alone, and the whole service that a page belongs to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.static_site import static_site
from tests.swarm.service_process import ServiceProcess, service_process


@pytest.fixture(scope="session")
def static_url() -> Iterator[str]:
    """The address of the static files and of the tests' own pages (`/blank.html`)."""
    with static_site() as url:
        yield url


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """`make run` in a process, with a run directory of its own: site, relay, slices, two native workers."""
    with service_process(tmp_path_factory.mktemp("service"), "--max-tokens=8") as process:
        yield process
