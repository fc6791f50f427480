"""A swarm of emulated workers on a controlled clock.

Benchmarks of scale and latency enter by `swarm`.
It never computes an expert's weights: answers come from the backbone's replica.
"""
