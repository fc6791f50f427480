"""Participants: accounts, nodes, tokens, invites, standing, and rate limits.

The market's API, the relay and the backbone's process enter by `tokens`, `access` and `trust_store`.
It never knows which experts a node holds or what it earns.
"""
