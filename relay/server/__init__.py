"""Daphne with bounded memory: messages in place, back-pressure, files sent by the system.

`manage.py serve` enters by `daphne`.
It never knows what a message means.
"""
