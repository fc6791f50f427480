"""The client side of a relay: sockets to relays, records, and edges that share a socket.

Workers and the backbone's edge pool enter by `edge`, `keeper` and `directory`.
It is not the relay itself, which is the top-level package `relay`.
"""
