"""Kvasir's light package: GGUF slices, expert kernels, the wire and the native worker.

The commands `kvasir` and `kvasir-worker` enter here, and every other package imports from it.
It never imports Django or torch: a worker needs only numpy, gguf and a few small clients.
"""

__version__ = "0.1.0"
