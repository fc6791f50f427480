"""The C library through ctypes: loaded once, with the argument types of every function.

Called by `kx1`, `rowops`, `sums` and the backbone's `stable_ops`. Calls release the GIL. Nothing is checked here:
callers are responsible for addresses and sizes.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any, ClassVar, cast

import numpy.typing as npt

from kvasir.errors import ConfigError, KernelError
from kvasir.kernels.build import LIBRARY_NAME, NATIVE_DIR, NEXT_STEP

API_VERSION = 6

# experts.h
BAD_CODE = -5
NOT_FINITE = -7
UNKNOWN_EXPONENT = -8
# sums.h
BAD_WIDTH = -20


class Stack(ctypes.Structure):
    """kx1_stack: one matrix of every expert."""

    _fields_: ClassVar = [("type", c_int32), ("base", c_void_p), ("stride", c_int64), ("exponents", c_void_p)]


class Layer(ctypes.Structure):
    """kx1_layer."""

    _fields_: ClassVar = [
        ("gate", Stack),
        ("up", Stack),
        ("down", Stack),
        ("n_expert", c_int64),
        ("d_model", c_int64),
        ("d_ff", c_int64),
    ]


class LinearCall(ctypes.Structure):
    """kx1_linear: one matrix."""

    _fields_: ClassVar = [
        ("type", c_int32),
        ("exponent", c_int32),
        ("n_terms", c_int32),
        ("weights", c_void_p),
        ("n_out", c_int64),
    ]


class HeadsInput(ctypes.Structure):
    """heads_input."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("query", "key", "value", "query_norm", "key_norm", "cos", "sin")),
        ("eps", c_float),
        ("scale", c_float),
    ]


class RouterForm(ctypes.Structure):
    """router_form."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("n_expert", "n_used", "n_group", "n_group_used", "is_sigmoid", "is_normalised")),
        ("selection_bias", c_void_p),
        ("weights_scale", c_float),
    ]


_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "kv_api_version": (c_int, []),
    "kv_isa_named": (c_void_p, [c_char_p]),
    "kv_isa_at": (c_void_p, [c_int]),
    "kv_isa_name": (c_char_p, [c_void_p]),
    "kv_n_helpers": (c_int, []),
    "kv_kx1_row_bytes": (c_int64, [c_int, c_int64]),
    "kv_kx1_weight_exponent": (c_int32, [c_int, c_void_p, c_int64, c_int64]),
    "kv_kx1_experts": (
        c_int,
        [c_void_p, POINTER(Layer), c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int],
    ),
    "kv_kx1_linears": (c_int, [c_void_p, c_void_p, c_int64, c_int64, POINTER(LinearCall), c_int, c_void_p, c_int]),
    "kv_kx1_check_packed": (c_int, [c_void_p, c_int64, c_int64, POINTER(c_int64)]),
    "kv_kx1_pack_rows": (c_int, [c_void_p, c_int64, c_int64, c_void_p, POINTER(c_int64), c_int]),
    "kv_kx1_silu_mul": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_int64]),
    "kv_sums_add": (None, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int]),
    "kv_sums_pack": (c_int64, [c_void_p, c_int64, c_int64, c_void_p]),
    "kv_sums_unpack": (c_int, [c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    "kv_sums_to_float": (None, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int]),
    "kv_matmul": (None, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_int]),
    "kv_norm": (None, [c_void_p, c_void_p, c_int64, c_int64, c_float, c_float, c_void_p, c_void_p, c_int]),
    "kv_elementwise": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_int64, c_void_p, c_int]),
    "kv_combine": (None, [c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int]),
    "kv_attention": (
        c_int,
        [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_float, c_void_p, c_int],
    ),
    "kv_attend": (
        c_int,
        [c_void_p, c_void_p, POINTER(HeadsInput), c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int],
    ),
    "kv_route": (c_int, [c_void_p, POINTER(RouterForm), c_void_p, c_int64, c_void_p, c_void_p, c_int]),
    "kv_conv": (None, [c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int]),
    "kv_delta_rule": (None, [*[c_void_p] * 9, c_int64, c_void_p, c_int]),
}


class NativeLibrary:
    """The loaded library. `lib.NAME(...)` are the functions of csrc/api.h; `isa` values are their first argument."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib

    @property
    def isa_names(self) -> tuple[str, ...]:
        """Return the builds of the kernels that this CPU can run, best first."""
        names: list[str] = []
        while isa := self.lib.kv_isa_at(len(names)):
            names.append(self.lib.kv_isa_name(isa).decode())
        return tuple(names)

    def isa(self, name: str | None = None) -> int:
        """Return the build called `name`, or the best one. Raises ConfigError if it cannot run here."""
        found = self.lib.kv_isa_at(0) if name is None else self.lib.kv_isa_named(name.encode())
        if not found:
            raise ConfigError(f"the kernel build {name!r} cannot run here: one of {', '.join(self.isa_names)} can")
        return int(found)

    @property
    def n_helpers(self) -> int:
        """Return the number of threads that the pool has started in this process."""
        return int(self.lib.kv_n_helpers())


@cache
def load() -> NativeLibrary:
    """Load the library on the first call. Raises KernelError with the next step if it is missing or broken."""
    path = NATIVE_DIR / LIBRARY_NAME
    if not path.exists():
        raise KernelError(f"Kvasir's C library is not built ({path} is missing): {NEXT_STEP}")
    try:
        lib = ctypes.CDLL(str(path))
        found = lib.kv_api_version()
        if found != API_VERSION:
            raise KernelError(
                f"{path} has interface {found}, {API_VERSION} is needed: run `python -m kvasir.kernels.build`"
            )
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise KernelError(f"{path} cannot be loaded ({error}): {NEXT_STEP}") from error
    return NativeLibrary(lib)


def available() -> bool:
    """Return whether the library is built and loads."""
    try:
        load()
    except KernelError:
        return False
    return True


def address(array: npt.NDArray[Any]) -> int:
    """Return the address of a contiguous array's first element; the caller keeps the array alive.

    `array.ctypes.data` is the same but several times slower, which matters for calls of microseconds.
    """
    try:
        return ctypes.addressof(c_char.from_buffer(cast(Any, array)))
    except (TypeError, ValueError):  # read-only, or empty
        return int(array.ctypes.data)


def usable_cores() -> int:
    """Return the number of cores that this process may use: the default number of threads."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
