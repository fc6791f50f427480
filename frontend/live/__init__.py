"""The dashboard's live feed: snapshots of the swarm for all watchers.

`kvasir_site.asgi` enters by `consumer`.
It never changes the market.
"""
