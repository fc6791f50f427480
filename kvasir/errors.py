"""One exception tree for the whole project.

Every message names the value that was wrong and what would have been right. Callers catch a branch of this
tree where something else can be done (fall back, close an edge, answer 4xx) and let everything else rise.
"""

from __future__ import annotations


class KvasirError(Exception):
    """Root of every error that Kvasir raises on purpose."""


class ConfigError(KvasirError):
    """A setting, an option or an environment variable has a value that cannot be used."""


class GGUFError(KvasirError):
    """A GGUF file is truncated, corrupted or contradicts itself."""


class UnsupportedModelError(KvasirError):
    """A well-formed model uses something that Kvasir does not run; the message names it."""


class SliceError(KvasirError):
    """An expert range is not in the model, or a slice file does not hold what its metadata says."""


class KernelError(KvasirError):
    """An expert kernel was given rows, ids or shapes that it must not compute, or it failed its self-test."""


class WireError(KvasirError):
    """Bytes from the other side are not a frame of this protocol."""


class WireVersionError(WireError):
    """The other side speaks another version of the wire; the message names both."""


class EdgeError(KvasirError):
    """An edge could not be opened, was closed, or did not answer before its deadline."""


class EdgeTimeout(EdgeError):
    """The other side did not answer before the deadline; the edge itself may still be good."""


class HandshakeRefused(EdgeError):
    """The other side refused the hello; the message says which part disagreed and what both sides had."""


class WorkerFault(EdgeError):
    """A worker answered a dispatch with a fault frame."""


class RequestError(KvasirError):
    """A request to the engine cannot be served as asked (too long, bad sampling value, no free slot)."""


class DownloadError(KvasirError):
    """A file could not be fetched whole, or what came is not the file that was announced."""
