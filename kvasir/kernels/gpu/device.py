"""A GPU through wgpu-py: adapter, device, buffers, programs and submissions.

Called by `gpu.kernel` and `gpu.call`. wgpu is imported when a device is opened. It knows nothing about experts; every
failure of the driver becomes a GpuError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvasir.errors import KernelError
from kvasir.kernels.gpu.shaders import Program, program_text
from kvasir.kernels.gpu.tables import SHAPE_WORDS

MOST_ARENA_BYTES = 128 * 1024 * 1024  # every WebGPU device can bind this
INSTALL = "install it with `pip install kvasir[gpu]`"
BACKENDS = ("Vulkan", "Metal", "D3D12")
ADAPTER_ORDER = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown")
SOFTWARE = "CPU"


class GpuError(KernelError):
    """There is no usable GPU, or its driver failed. The CPU computes the same bits."""


class Step(NamedTuple):
    """One dispatch of a submission."""

    pipeline: Any
    group: Any  # bind group
    shape_number: int
    workgroups: tuple[int, int]


class Bindings(NamedTuple):
    """The buffers of one dispatch, in the order of their binding numbers."""

    weights: Any
    inputs: Any
    outputs: Any
    tasks: Any
    pairs: Any
    shapes: Any


def open_device(software: bool = False) -> GpuDevice:
    """Open the best adapter's device; with `software`, one that computes on the CPU, for tests.

    Raises GpuError if wgpu is not installed or there is no such adapter.
    """
    try:
        import wgpu
    except ImportError as error:
        raise GpuError(f"computing on a GPU needs the package wgpu; {INSTALL}") from error
    with driver_errors("listing adapters"):
        _ask_for_compute_backends()
        adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] in BACKENDS]
    kinds = (SOFTWARE,) if software else ADAPTER_ORDER
    fitting = [a for a in adapters if a.info["adapter_type"] in kinds]
    if not fitting:
        found = ", ".join(f"{a.info['device']} ({a.info['adapter_type']})" for a in adapters) or "none at all"
        wanted = "software adapter (Mesa's lavapipe)" if software else "GPU with a Vulkan, Metal or D3D12 driver"
        raise GpuError(f"there is no {wanted}; adapters found: {found}")
    return GpuDevice(min(fitting, key=lambda a: kinds.index(a.info["adapter_type"])))


@contextmanager
def driver_errors(doing: str) -> Iterator[None]:
    """Turn all errors of wgpu into GpuErrors that name the operation."""
    try:
        yield
    except KernelError:
        raise
    except Exception as error:  # wgpu raises its own classes, RuntimeError, and errors of its bindings
        raise GpuError(f"the GPU failed while {doing}: {type(error).__name__}: {error}") from error


class GpuDevice:
    """One device, with a bind group layout shared by all programs. Used by one thread at a time."""

    def __init__(self, adapter: Any) -> None:
        import wgpu

        self._flags = wgpu.BufferUsage
        self.name = str(adapter.info["device"])
        self.is_software = adapter.info["adapter_type"] == SOFTWARE
        self.arena_bytes = min(MOST_ARENA_BYTES, *(adapter.limits[name] for name in _SIZE_LIMITS))
        with driver_errors("opening the device"):
            self._device = adapter.request_device_sync(
                required_limits={name: min(adapter.limits[name], size) for name, size in _SIZE_LIMITS.items()}
            )
            self._layout = self._device.create_bind_group_layout(entries=_layout_entries(wgpu.ShaderStage.COMPUTE))
            self._pipeline_layout = self._device.create_pipeline_layout(bind_group_layouts=[self._layout])
        self.shape_stride = max(4 * SHAPE_WORDS, int(adapter.limits["min-uniform-buffer-offset-alignment"]))
        self.lanes = 4
        self.has_packed_dot = True
        self._pipelines: dict[Program, Any] = {}

    def use(self, lanes: int, has_packed_dot: bool) -> None:
        """Compile programs with these settings from now on."""
        if (lanes, has_packed_dot) != (self.lanes, self.has_packed_dot):
            self.lanes, self.has_packed_dot = lanes, has_packed_dot
            self._pipelines.clear()

    def pipeline(self, program: Program) -> Any:
        """Return a program, compiled on first use."""
        if program not in self._pipelines:
            text = program_text(program, self.lanes, self.has_packed_dot)
            self._pipelines[program] = self.compiled(text, f"{program.kind} {program.quant_type or ''}")
        return self._pipelines[program]

    def compiled(self, text: str, name: str) -> Any:
        """Compile a WGSL text with entry point `main`. Raises GpuError with the compiler's message."""
        with driver_errors(f"compiling {name}"):
            module = self._device.create_shader_module(code=text)
            return self._device.create_compute_pipeline(
                layout=self._pipeline_layout, compute={"module": module, "entry_point": "main"}
            )

    def storage(self, n_bytes: int) -> Any:
        """Create a buffer for shaders that can be written and copied from. Raises GpuError if memory is exhausted."""
        return self._buffer(n_bytes, self._flags.STORAGE | self._flags.COPY_DST | self._flags.COPY_SRC)

    def uniforms(self, n_shapes: int) -> Any:
        """Create a buffer for the shapes of `n_shapes` dispatches."""
        return self._buffer(n_shapes * self.shape_stride, self._flags.UNIFORM | self._flags.COPY_DST)

    def readback(self, n_bytes: int) -> Any:
        """Create a buffer that can be mapped for reading."""
        return self._buffer(n_bytes, self._flags.MAP_READ | self._flags.COPY_DST)

    def _buffer(self, n_bytes: int, usage: int) -> Any:
        with driver_errors(f"making a buffer of {n_bytes} bytes"):
            return self._device.create_buffer(size=n_bytes, usage=usage)

    def write(self, buffer: Any, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy an array, a multiple of 4 bytes, into a buffer, in order with submissions."""
        with driver_errors("writing a buffer"):
            self._device.queue.write_buffer(buffer, offset, np.ascontiguousarray(data))

    def write_shapes(self, buffer: Any, shapes: Sequence[tuple[int, ...]]) -> None:
        """Write each shape at its multiple of `shape_stride`."""
        table = np.zeros((len(shapes), self.shape_stride // 4), np.uint32)
        table[:, :SHAPE_WORDS] = shapes
        self.write(buffer, table)

    def bind(self, buffers: Bindings) -> Any:
        """Create a bind group of these buffers."""
        entries: list[dict[str, Any]] = [
            {"binding": i, "resource": {"buffer": b, "offset": 0}} for i, b in enumerate(buffers)
        ]
        entries[-1]["resource"]["size"] = 4 * SHAPE_WORDS
        with driver_errors("binding buffers"):
            return self._device.create_bind_group(layout=self._layout, entries=entries)

    def submit(self, steps: Sequence[Step], copy: tuple[Any, Any, int] | None = None) -> None:
        """Run steps in order, then copy (from, to, bytes)."""
        with driver_errors("submitting work"):
            encoder = self._device.create_command_encoder()
            computing = encoder.begin_compute_pass()
            for step in steps:
                computing.set_pipeline(step.pipeline)
                computing.set_bind_group(0, step.group, [step.shape_number * self.shape_stride])
                computing.dispatch_workgroups(*step.workgroups)
            computing.end()
            if copy is not None:
                source, target, n_bytes = copy
                encoder.copy_buffer_to_buffer(source, 0, target, 0, n_bytes)
            self._device.queue.submit([encoder.finish()])

    def map_for_reading(self, buffer: Any, n_bytes: int) -> Any:
        """Request the first bytes of a readback buffer; `read_mapped` waits for them."""
        with driver_errors("asking for outputs"):
            return buffer.map_async("READ", 0, n_bytes)

    def read_mapped(self, buffer: Any, mapping: Any, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Wait for all earlier submissions and return a copy of the requested bytes."""
        with driver_errors("computing"):
            mapping.sync_wait()
            copied: npt.NDArray[np.uint8] = np.frombuffer(buffer.read_mapped(0, n_bytes), np.uint8)
            buffer.unmap()
        return copied

    def close(self) -> None:
        """Destroy the device and its buffers."""
        self._pipelines.clear()
        self._device.destroy()


@cache
def _ask_for_compute_backends() -> None:
    """Exclude OpenGL, which cannot run these programs. Must run once before adapters are listed."""
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    set_instance_extras(backends=["Primary"])


_SIZE_LIMITS = {"max-storage-buffer-binding-size": MOST_ARENA_BYTES, "max-buffer-size": 2 * MOST_ARENA_BYTES}


def _layout_entries(visibility: int) -> list[dict[str, Any]]:
    kinds = ("read-only-storage", "read-only-storage", "storage", "read-only-storage", "read-only-storage")
    entries: list[dict[str, Any]] = [
        {"binding": i, "visibility": visibility, "buffer": {"type": kind}} for i, kind in enumerate(kinds)
    ]
    uniform = {"type": "uniform", "has_dynamic_offset": True, "min_binding_size": 4 * SHAPE_WORDS}
    return [*entries, {"binding": len(kinds), "visibility": visibility, "buffer": uniform}]
