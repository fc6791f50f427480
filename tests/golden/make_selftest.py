"""Writes kvasir/kernels/selftest_digests.py: KX1's digests by the numpy oracle, the float kernel's by its numpy twin.

Run by hand as `python -m tests.golden.make_selftest` when a kernel gets a new version or a new case; no test runs it.
KX1's digests are frozen with version 1 of docs/reference/kx1.md and must come out as they were.
"""

from __future__ import annotations

from pathlib import Path

from kvasir.kernels import selftest_digests
from kvasir.kernels.api import ExpertKernel
from kvasir.kernels.float_kernel import FloatKernel
from kvasir.kernels.oracle.kernel import NumpyKX1Kernel
from kvasir.kernels.oracle.rowops import NumpyRowOps
from kvasir.kernels.selftest import CASES, CaseRun

HEAD = '''"""Frozen digests of the self-test, by kernel, case and part: see `selftest`.

Written by tests/golden/make_selftest.py. They change only with the version of a kernel: a difference is a defect of the
build, never a reason to edit this file.
"""

FROZEN_DIGESTS: dict[str, dict[str, dict[str, str]]] = {
'''


def main() -> None:
    """Write the module, and say whether anything changed."""
    kernels: tuple[ExpertKernel, ...] = (NumpyKX1Kernel(), FloatKernel(ops=NumpyRowOps()))
    made = {
        kernel.name: {case.name: CaseRun.of(kernel, case).digests() for case in CASES[kernel.name]}
        for kernel in kernels
    }
    lines = []
    for name, cases in made.items():
        lines.append(f'    "{name}": {{')
        for case, digests in cases.items():
            lines.append(f'        "{case}": {{')
            lines += [f'            "{part}": "{digest}",' for part, digest in digests.items()]
            lines.append("        },")
        lines.append("    },")
    Path(selftest_digests.__file__).write_text(HEAD + "\n".join(lines) + "\n}\n")
    print("unchanged" if made == selftest_digests.FROZEN_DIGESTS else "changed")


if __name__ == "__main__":
    main()
