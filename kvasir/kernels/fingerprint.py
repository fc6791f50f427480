"""The fingerprint of an expert kernel: what two sides compare before they share work.

Called by the kernels. Equal fingerprints mean the same name, the same version of the specification and the same
bits on the self-test; it says nothing about which build or instruction set computed them.
"""

from __future__ import annotations

import hashlib

KX1_NAME = "kx1"
KX1_VERSION = 1  # of docs/reference/kx1.md; frozen
FLOAT_NAME = "float"
FLOAT_VERSION = 1


def kernel_fingerprint(name: str, version: int, digest: str) -> str:
    """64 hex digits over a kernel's name, its version and the digest that its self-test returned."""
    return hashlib.sha256(f"{name} {version} {digest}".encode()).hexdigest()
