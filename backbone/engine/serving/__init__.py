"""The engine as a service: admission, scheduling, sequences, micro-batches, steps.

`backbone.process` enters by `service` and `loaded_model`.
It never opens a socket and never asks the market.
"""
