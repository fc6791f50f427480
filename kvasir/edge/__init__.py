"""One end of an edge between a backbone and a worker: handshake, calls in flight, keep-alive, back-off.

The backbone's edge pool and `kvasir.relay` enter by `tcp_edge`, `calls` and `link`.
It never decides who is asked, and never computes.
"""
