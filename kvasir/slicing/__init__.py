"""Slices of model files: facts of a model, expert ranges, byte plans, manifests.

`kvasir slice`, slice servers, workers, the market and the backbone enter by `model_card`, `slices` and `slice_file`.
It never computes an expert and does no network I/O.
"""
