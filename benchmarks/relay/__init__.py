"""Parts of `bench_relay`: a bare relay to compare with, load, slow readers.

`bench_relay` and `bench_overhead` enter.
It never leaves the loopback.
"""
