"""The backbone process: Celery's side of the engine, heartbeats, receipts, records.

`backbone.tasks` enters by `backbone_process`.
It never serves HTTP.
"""
