"""One MoE layer's journey to workers and back: dispatch, hedging, fallback, hot experts.

The model calls `dispatcher` through `ExpertCaller`.
It never opens a socket: a transport does.
"""
