"""Parts of `bench_speculate`: texts, heads and runs.

Only that benchmark enters.
It never changes a text.
"""
