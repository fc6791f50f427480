"""Completions and chat completions: bodies in, requests to the backbone, replies whole or streamed.

`backbone.api.routes` enters.
It never checks a key and never computes a token.
"""
