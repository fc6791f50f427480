"""Models of real shape, made on the spot, and measured steps over them.

Benchmarks of the engine enter.
It ships no weights.
"""
