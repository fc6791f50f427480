"""The engine: a model's dense path, dispatch to workers, trust, sequences, sampling.

`backbone.process` and commands enter by `serving`.
It imports neither Django, Celery nor Redis: transports, clocks and callbacks are injected.
"""
