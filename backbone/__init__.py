"""The backbone: REST API, stream, backbone process, and the engine with the dense path of a model.

`kvasir_site` enters by `api` and `tasks`.
Outside `engine` and `process` it never imports torch, so that web processes start without it.
"""
