"""The dense path of a model: architectures, layers, attention, KV cache, MTP head, loading.

Serving enters by `model` and `loader`.
It never knows a worker: experts are called through `expert_caller`.
"""
