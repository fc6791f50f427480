"""The native worker: it holds slices of a model and computes their experts for every backbone that connects.

`kvasir-worker` enters by `__main__`; `agent` decides, `slices` downloads, `serving` computes.
It never imports Django or torch, and never opens a port unless it is told to listen.
"""
