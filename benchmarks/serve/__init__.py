"""Clients and servers of `bench_serve` and `bench_slices`.

Those benchmarks enter.
It never leaves the loopback.
"""
