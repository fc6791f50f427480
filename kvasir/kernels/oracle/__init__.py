"""The kernels in numpy: KX1 and the float kernel's row operations, written from the specification alone.

Tests and golden files enter, and `registry`, `sums` and `rowops` where the C library is not built.
They never call native code.
"""
