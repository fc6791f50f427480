"""API keys: who asks, how often, and keys for guests.

`backbone.api.routes` and `manage.py issue_key` enter.
It never stores a key, only its digest.
"""
