"""Benchmarks: one script for one question, one JSON line as its answer.

`make bench` and `python -m benchmarks.bench_NAME` enter; METHODOLOGY.md says what is timed.
No test asserts a time that a benchmark measures.
"""
