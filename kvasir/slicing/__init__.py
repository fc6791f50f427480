"""Model files cut into slices: facts of a model, expert ranges, byte plans, manifests.

`kvasir slice`, slice servers, workers and the market enter by `model_card`, `slice_plan` and `slices`.
It never computes an expert and does no network I/O.
"""
