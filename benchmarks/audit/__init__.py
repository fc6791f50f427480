"""Parts of `bench_audit`: the simulated and the real swarm.

Only that benchmark enters.
It is never part of a test of correctness.
"""
