"""One MoE layer's journey to workers and back: dispatch, hedging, fallback, hot experts.

The model enters by `dispatcher`, which implements its `ExpertCaller`; serving enters by `dispatcher` and `counters`.
It never opens a socket: a transport does.
"""
