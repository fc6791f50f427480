"""GGUF files: header, metadata and tensor table, read and written by byte ranges.

Slicing, the worker's cache and the backbone's loader enter by `index` and `header`.
It never dequantises a tensor and never opens a socket.
"""
