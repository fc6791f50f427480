"""Who holds which experts now and who should: heartbeats, leases, traffic, targets, scarcity.

The market's API and the pages enter by `participation` and `reading`.
It keeps nothing that is owed: Redis holds all of it, with an expiry.
"""
