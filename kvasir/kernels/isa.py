"""Builds of the native kernels by instruction set, and the one that KVASIR_ISA forces."""

from __future__ import annotations

import os

from kvasir.errors import ConfigError

ISA_VARIABLE = "KVASIR_ISA"
NUMPY = "numpy"
NATIVE_ISAS = ("scalar", "avx2", "avx512", "neon", "dotprod")


def wanted_isa() -> str | None:
    """The build of KX1 that KVASIR_ISA forces, or None; raises ConfigError when it names none."""
    value = os.environ.get(ISA_VARIABLE, "")
    if value and value not in (*NATIVE_ISAS, NUMPY):
        raise ConfigError(
            f"{ISA_VARIABLE} is {value!r}; it must be one of {', '.join((*NATIVE_ISAS, NUMPY))}, or unset"
        )
    return value or None
