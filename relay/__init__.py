"""Data plane: the bridge at port 443 between backbones and workers that both dial out to it.

`kvasir_site.asgi` and `manage.py serve` enter by `site`; docs/reference/relay.md has the protocol.
It never reads what a frame carries and never imports the backbone.
"""
