"""The slice server: byte ranges of model files, manifests, and download limits.

`kvasir_site.asgi` enters by `site`.
It never hands out dense tensors and never opens a path that a client named.
"""
