"""The state of the service: health, metrics, request records and traces.

`backbone.api.routes` and `kvasir_site.urls` enter.
It never changes anything.
"""
