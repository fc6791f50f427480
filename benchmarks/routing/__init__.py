"""Routing made up or recorded, and what it costs in bytes and cache.

`bench_wire` and `bench_hot_cache` enter.
It never runs a swarm.
"""
