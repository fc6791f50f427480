"""Where the dense path computes: on the CPU, or, experimentally, on a CUDA device through torch.

CUDA is experimental: tests check where its tensors are, but its speed and its texts were never measured. The exact
dense path computes on the CPU alone, so "auto" never moves it.
"""

from __future__ import annotations

from enum import StrEnum

import torch

from kvasir.errors import ConfigError

CPU = torch.device("cpu")


class Device(StrEnum):
    """The device that the settings ask for."""

    CPU = "cpu"
    CUDA = "cuda"
    AUTO = "auto"


def torch_device(choice: Device, *, is_exact: bool, needs_cuda: bool = False) -> torch.device:
    """Return where to compute: for "auto" CUDA if torch finds it and the arithmetic is not exact, else the CPU.

    Raises ConfigError for CUDA with exact arithmetic, for CUDA that torch does not find, and for the CPU if the
    arithmetic `needs_cuda`.
    """
    has_cuda = torch.cuda.is_available()
    if choice is Device.CUDA and is_exact:
        raise ConfigError(
            "the exact dense path, kx1, computes on the CPU only; a CUDA device takes `fast` (weights in bf16) or "
            "`float` (f32), whose bits are not the CPU's"
        )
    if choice is Device.CUDA and not has_cuda:
        raise ConfigError(f"CUDA is asked for and {_describe_torch()}; `cpu` computes without it")
    if has_cuda and not is_exact and choice is not Device.CPU:
        return torch.device("cuda")
    if needs_cuda:
        missing = "KVASIR_DEVICE is cpu" if choice is Device.CPU else _describe_torch()
        raise ConfigError(f"KVASIR_DENSE=fast needs a CUDA device and {missing}; set KVASIR_DENSE=kx1")
    return CPU


def _describe_torch() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    return f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, finds no device"
