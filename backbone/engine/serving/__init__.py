"""The engine as a service: admission, scheduling, sequences, micro-batches, steps.

`backbone.process` enters by `service` and `loaded_model`; commands and benchmarks also by `engine`.
It never opens a socket and never asks the market.
"""
