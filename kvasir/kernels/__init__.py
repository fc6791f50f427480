"""Expert kernels: KX1 in C, on GPUs and in numpy, the float kernel, and the registry that chooses between them.

The worker, the backbone's replica and its stable operations enter by `registry`, `kx1`, `sums` and `rowops`.
They never do network I/O, and a result never depends on the batch, the machine or the number of threads.
"""
