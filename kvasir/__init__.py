"""Kvasir's light package: GGUF slices, expert kernels, the wire and the native worker.

It needs only numpy, gguf and a few small clients, so that a stranger's machine can run a worker
without Django or torch.
"""

__version__ = "0.1.0"
