"""Completions and chat completions: from bodies to requests for the backbone, and from its events to replies.

`backbone.api.routes` enters.
It never checks a key and never computes a token.
"""
