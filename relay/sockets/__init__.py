"""The relay's sockets: sessions, the bridges between them, and what waits to be sent.

`relay.service` enters by `hub` and `application`.
It never reads a frame's payload.
"""
