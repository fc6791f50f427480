"""Who holds which experts now and who should: heartbeats, leases, traffic, targets, scarcity.

The market's API and the pages enter by `participation` and `reading`.
It never stores anything durable: all of it is in Redis and expires.
"""
