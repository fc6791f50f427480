"""The frame codec between backbones and workers: bytes in, typed frames out, sans-I/O.

Both ends of an edge and the relay enter by `codec` and `frames`.
It never opens a socket and never waits.
"""
