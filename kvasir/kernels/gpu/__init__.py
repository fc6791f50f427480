"""KX1 on a GPU through wgpu: device, shaders, arenas, calls, tuning.

`kvasir.kernels.backend` enters by `kernel` and `or_cpu`.
It is never imported unless a GPU was requested, and never changes a bit.
"""
