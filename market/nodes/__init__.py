"""Who takes part: accounts, nodes, tokens, invites, standing, and how often each may ask.

The market's API, the relay and the backbone's process enter by `tokens`, `access` and `trust_store`.
It never knows what a node holds or earns.
"""
