"""A worker's slice cache: download with resume, verification, repair, eviction within the budget.

The agent enters by `store`.
It never decides which experts to hold.
"""
