"""API keys: authentication, rate limits, and keys for guests.

`backbone.api.routes` and `manage.py issue_key` enter.
It never stores a key, only its digest.
"""
