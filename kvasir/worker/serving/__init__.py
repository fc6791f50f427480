"""A worker that serves loaded experts: connections, admission of frames, computing.

`kvasir.worker.__main__` and the agent enter by `serve` and `join`.
It never asks the market and never downloads.
"""
