"""The exception tree of the whole project.

Every message names the wrong value and what would be right. Callers catch a branch of this tree where they can do
something else (fall back, close an edge, answer 4xx) and let everything else propagate.
"""

from __future__ import annotations


class KvasirError(Exception):
    """Base class of all errors that Kvasir raises on purpose."""


class ConfigError(KvasirError):
    """A setting, an option or an environment variable has a value that cannot be used."""


class GGUFError(KvasirError):
    """A GGUF file is truncated, corrupted or contradicts itself."""


class UnsupportedModelError(KvasirError):
    """A well-formed model uses something that Kvasir does not support; the message names it."""


class SliceError(KvasirError):
    """An expert range is not in the model, or a slice file contradicts its metadata."""


class KernelError(KvasirError):
    """An expert kernel got invalid rows, ids or shapes, or it failed its self-test."""


class WireError(KvasirError):
    """Bytes from the other side are not a valid frame."""


class WireVersionError(WireError):
    """The other side speaks another version of the wire; the message names both."""


class EdgeError(KvasirError):
    """An edge could not be opened, was closed, or did not answer before its deadline."""


class EdgeTimeout(EdgeError):
    """The other side did not answer before the deadline; the edge itself may still be good."""


class HandshakeRefused(EdgeError):
    """The other side refused the hello; the message names what disagreed and both values."""


class WorkerFault(EdgeError):
    """A worker answered a dispatch with a fault frame."""


class RequestError(KvasirError):
    """A request to the engine cannot be served (too long, invalid sampling value, no free slot)."""


class DownloadError(KvasirError):
    """A file could not be downloaded completely, or its content is not the announced one."""
