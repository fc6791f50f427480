"""On what the dense path computes: the CPU, or a CUDA device through torch.

Called when a model is opened. A device only says where; whether bits may depend on it is what the arithmetic of the
dense path says (`loaded_model.Dense`), which is why "auto" never moves exact arithmetic away from the CPU.
"""

from __future__ import annotations

from enum import StrEnum

import torch

from kvasir.errors import ConfigError

CPU = torch.device("cpu")


class Device(StrEnum):
    """What was asked for."""

    CPU = "cpu"
    CUDA = "cuda"
    AUTO = "auto"


def torch_device(choice: Device, *, is_exact: bool) -> torch.device:
    """Where to compute. "auto" is CUDA where torch finds it and the arithmetic is not the exact one, else the CPU.

    Raises ConfigError for "cuda" with exact arithmetic, which is the CPU's alone, and where torch finds no device.
    """
    if choice is Device.CPU:
        return CPU
    has_cuda = torch.cuda.is_available()
    if choice is Device.AUTO:
        return torch.device("cuda") if has_cuda and not is_exact else CPU
    if is_exact:
        raise ConfigError(
            "the exact dense path, kx1, computes on the CPU only; a CUDA device takes `fast` (weights in bf16) or "
            "`float` (f32), whose bits are not the CPU's"
        )
    if not has_cuda:
        raise ConfigError(f"CUDA is asked for and {_describe_torch()}; `cpu` computes without it")
    return torch.device("cuda")


def _describe_torch() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    return f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, finds no device"
