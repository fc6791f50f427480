"""The packaging backend: setuptools, plus Kvasir's C library in the wheel.

`pip` calls it (see `[build-system]` in pyproject.toml). It asks for the `ziglang` wheel only where the system has no C
compiler, and without any compiler it still installs, with a warning: everything then computes in numpy.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kvasir.errors import KernelError  # noqa: E402  (the source tree is not installed while it is being built)
from kvasir.kernels import build  # noqa: E402

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

WARNING = """
========================================================================================================
Kvasir is being installed WITHOUT its C library: {reason}
Experts will be computed by numpy, about 100 times slower, and the backbone's quantised dense path will
not run. To repair it: {next_step}
========================================================================================================
"""


class PlatformWheel(bdist_wheel):
    """A wheel with a C library that Python does not link to: any Python 3, but only this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform_tag = super().get_tag()
        return "py3", "none", platform_tag


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Setuptools' requirements, and a C compiler from the package index where the system has none."""
    wanted = list(build_meta.get_requires_for_build_wheel(config_settings))
    return wanted if build.system_compiler() else [*wanted, "ziglang"]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """As for a wheel."""
    return get_requires_for_build_wheel(config_settings)


def _build_library() -> bool:
    try:
        build.build()
    except (KernelError, OSError) as error:
        sys.stderr.write(WARNING.format(reason=error, next_step=build.NEXT_STEP))
        shutil.rmtree(build.NATIVE_DIR, ignore_errors=True)
        return False
    return True


def _use_platform_wheel() -> None:
    """Let setuptools tag the wheel for this platform: it holds a library that setuptools knows nothing about."""
    Distribution.has_ext_modules = lambda self: True
    import setuptools.command.bdist_wheel as command

    command.bdist_wheel = PlatformWheel


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the C library where there is a compiler, then the wheel around it."""
    if _build_library():
        _use_platform_wheel()
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the C library in place where there is a compiler, then setuptools' editable wheel."""
    _build_library()
    return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))
