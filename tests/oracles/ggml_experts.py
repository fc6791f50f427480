"""ggml's own experts on the CPU, by `mul_mat_id`: the outside reference of `bench_expert`.

`libggml-python` through ctypes. The weights are ggml tensors over bytes that the caller has mapped: nothing is copied
or repacked. Graphs are built once for each number of tokens.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from ctypes import c_bool, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvasir.experts import ExpertStack, FloatRows, LayerExperts

F32, I32 = 0, 26  # ggml's numbers
STATUS_SUCCESS = 0
GRAPH_NODES = 32


class _InitParams(ctypes.Structure):
    _fields_: ClassVar = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class _ThreadPoolParams(ctypes.Structure):
    _fields_: ClassVar = [
        ("cpumask", c_bool * 512),
        ("n_threads", c_int),
        ("prio", c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", c_bool),
        ("paused", c_bool),
    ]


_BASE_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "ggml_init": (c_void_p, [_InitParams]),
    "ggml_tensor_overhead": (c_size_t, []),
    "ggml_graph_overhead_custom": (c_size_t, [c_size_t, c_bool]),
    "ggml_new_tensor": (c_void_p, [c_void_p, c_int, c_int, ctypes.POINTER(c_int64)]),
    "ggml_mul_mat_id": (c_void_p, [c_void_p] * 4),
    "ggml_swiglu_split": (c_void_p, [c_void_p] * 3),
    "ggml_set_input": (None, [c_void_p]),
    "ggml_set_output": (None, [c_void_p]),
    "ggml_new_graph_custom": (c_void_p, [c_void_p, c_size_t, c_bool]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_get_data": (c_void_p, [c_void_p]),
    "ggml_backend_tensor_alloc": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ggml_backend_cpu_buffer_from_ptr": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_cpu_buffer_type": (c_void_p, []),
    "ggml_gallocr_new": (c_void_p, [c_void_p]),
    "ggml_gallocr_alloc_graph": (c_bool, [c_void_p, c_void_p]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
    "ggml_threadpool_params_init": (None, [ctypes.POINTER(_ThreadPoolParams), c_int]),
}
_CPU_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "ggml_backend_cpu_init": (c_void_p, []),
    "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
    "ggml_threadpool_new": (c_void_p, [ctypes.POINTER(_ThreadPoolParams)]),
    "ggml_backend_cpu_set_threadpool": (None, [c_void_p, c_void_p]),
}


@dataclass(frozen=True, slots=True)
class _Graph:
    """One call's graph with views of its inputs and its output."""

    handle: int
    rows: FloatRows  # [n, d_model]
    expert_ids: npt.NDArray[np.int32]  # [n, n_used]
    outputs: FloatRows  # [n, n_used, d_model]


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    spec = importlib.util.find_spec("libggml")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package libggml-python is needed (requirements-dev.txt)")
    package = Path(spec.origin).parent
    folder = next(package / name for name in ("lib64", "lib") if (package / name).is_dir())
    suffix = "dylib" if any(folder.glob("*.dylib")) else "so"
    base = ctypes.CDLL(str(folder / f"libggml-base.{suffix}"), ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(folder / f"libggml-cpu.{suffix}"), ctypes.RTLD_GLOBAL)
    for library, signatures in ((base, _BASE_SIGNATURES), (cpu, _CPU_SIGNATURES)):
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return base, cpu


class GgmlExperts:
    """One layer's experts on `n_threads` threads of ggml's CPU backend."""

    def __init__(self, experts: LayerExperts, n_threads: int = 1) -> None:
        """The expert stacks must be contiguous and stay mapped as long as this object lives."""
        self._base, cpu = _libraries()
        self._experts = experts
        self._backend = cpu.ggml_backend_cpu_init()
        cpu.ggml_backend_cpu_set_n_threads(self._backend, n_threads)
        parameters = _ThreadPoolParams()
        self._base.ggml_threadpool_params_init(ctypes.byref(parameters), n_threads)
        cpu.ggml_backend_cpu_set_threadpool(self._backend, cpu.ggml_threadpool_new(ctypes.byref(parameters)))
        self._context = self._new_context(4 * self._base.ggml_tensor_overhead())
        self._gate, self._up, self._down = (self._weights(s) for s in (experts.gate, experts.up, experts.down))
        self._graphs: dict[tuple[int, int], _Graph] = {}

    def compute(self, rows: FloatRows, expert_ids: npt.NDArray[np.int32]) -> FloatRows:
        """Outputs [n, n_used, d_model] of rows [n, d_model]; a view that the next call of this size overwrites."""
        n_expert = self._experts.n_expert
        if expert_ids.min() < 0 or expert_ids.max() >= n_expert:  # ggml would read anywhere
            raise ValueError(f"expert ids must be 0 to {n_expert - 1}")
        graph = self._graph(*expert_ids.shape)
        graph.rows[:] = rows
        graph.expert_ids[:] = expert_ids
        status = self._base.ggml_backend_graph_compute(self._backend, graph.handle)
        if status != STATUS_SUCCESS:
            raise RuntimeError(f"ggml's graph ended with status {status}")
        return graph.outputs

    def prepare(self, n: int, n_used: int) -> None:
        """Build the graph of a size, so that the first `compute` does not."""
        self._graph(n, n_used)

    def _new_context(self, n_bytes: int) -> int:
        return int(self._base.ggml_init(_InitParams(n_bytes, None, True)))

    def _tensor(self, context: int, ggml_type: int, *shape: int) -> int:
        return int(self._base.ggml_new_tensor(context, ggml_type, len(shape), (c_int64 * len(shape))(*shape)))

    def _weights(self, stack: ExpertStack) -> int:
        """A tensor over the stack's own bytes. ggml wants buffers to start at a multiple of 32 bytes."""
        if not stack.data.flags.c_contiguous:
            raise ValueError("the experts of a stack must follow each other without gaps")
        address = stack.data.ctypes.data
        start = address // 32 * 32
        buffer = self._base.ggml_backend_cpu_buffer_from_ptr(start, address - start + stack.data.nbytes)
        tensor = self._tensor(self._context, int(stack.quant_type), stack.n_in, stack.n_out, stack.n_expert)
        if self._base.ggml_backend_tensor_alloc(buffer, tensor, address) != STATUS_SUCCESS:
            raise RuntimeError("ggml refused the mapped weights")
        return tensor

    def _graph(self, n: int, n_used: int) -> _Graph:
        known = self._graphs.get((n, n_used))
        if known is None:
            known = self._graphs[n, n_used] = self._build(n, n_used)
        return known

    def _build(self, n: int, n_used: int) -> _Graph:
        base, d_model = self._base, self._experts.d_model
        n_bytes = 16 * base.ggml_tensor_overhead() + base.ggml_graph_overhead_custom(GRAPH_NODES, False)
        context = self._new_context(n_bytes)
        rows = self._tensor(context, F32, d_model, 1, n)
        ids = self._tensor(context, I32, n_used, n)
        base.ggml_set_input(rows)
        base.ggml_set_input(ids)
        gate = base.ggml_mul_mat_id(context, self._gate, rows, ids)
        up = base.ggml_mul_mat_id(context, self._up, rows, ids)
        outputs = base.ggml_mul_mat_id(context, self._down, base.ggml_swiglu_split(context, gate, up), ids)
        base.ggml_set_output(outputs)
        handle = base.ggml_new_graph_custom(context, GRAPH_NODES, False)
        base.ggml_build_forward_expand(handle, outputs)
        allocator = base.ggml_gallocr_new(base.ggml_backend_cpu_buffer_type())
        if not base.ggml_gallocr_alloc_graph(allocator, handle):
            raise RuntimeError(f"ggml cannot allocate a graph for {n} rows")
        return _Graph(
            handle,
            self._view(rows, c_float, (n, d_model)),
            self._view(ids, c_int32, (n, n_used)),
            self._view(outputs, c_float, (n, n_used, d_model)),
        )

    def _view(self, tensor: int, number: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return np.ctypeslib.as_array(ctypes.cast(self._base.ggml_get_data(tensor), ctypes.POINTER(number)), shape)
