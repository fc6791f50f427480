"""The backbone process: requests from Celery to the engine, its events to Redis, heartbeats, receipts, records.

`backbone.tasks` enters by `backbone_process`.
It never serves HTTP.
"""
