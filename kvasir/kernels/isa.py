"""The names of the native builds by instruction set, and the choice by KVASIR_ISA."""

from __future__ import annotations

import os

from kvasir.errors import ConfigError

ISA_VARIABLE = "KVASIR_ISA"
NUMPY = "numpy"
NATIVE_ISAS = ("scalar", "avx2", "avx512", "neon", "dotprod")


def wanted_isa() -> str | None:
    """Return the build that KVASIR_ISA names, or None if it is unset. Raises ConfigError for an unknown name."""
    value = os.environ.get(ISA_VARIABLE, "")
    if value and value not in (*NATIVE_ISAS, NUMPY):
        raise ConfigError(
            f"{ISA_VARIABLE} is {value!r}; it must be one of {', '.join((*NATIVE_ISAS, NUMPY))}, or unset"
        )
    return value or None
