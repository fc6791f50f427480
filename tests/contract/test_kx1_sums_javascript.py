"""Step 7 of KX1 in the pages' JavaScript: the golden vectors of tests/golden/kx1_sums/, and its own words."""

from __future__ import annotations

from tests.browser.node_tests import run_node_tests
from tests.contract.test_kx1_sums_golden import HEADER


def test_javascript_meets_the_golden_vectors() -> None:
    run_node_tests("row_sums.test.mjs", len(HEADER["cases"]) + 4)
