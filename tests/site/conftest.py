"""Fixtures of the site's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.site.api_client import Site, keys_at, site_with


@pytest.fixture(scope="module")
def api_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with keys_at(tmp_path_factory.mktemp("site") / "site.sqlite3") as key:
        yield key


@pytest.fixture
def site(api_key: str) -> Iterator[Site]:
    with site_with(api_key) as site:
        yield site
