"""Daphne with bounded memory: messages received in place, back-pressure, files sent by the operating system.

`manage.py serve` enters by `daphne`.
It does not interpret messages.
"""
