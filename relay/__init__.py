"""Data plane: the relay, through which backbones and workers reach each other by connections that both open to it.

`kvasir_site.asgi` and `manage.py serve` enter by `asgi`; docs/reference/relay.md has the protocol.
It never reads what a frame carries and never imports the backbone.
"""
