"""The backbone: the REST API, the backbone process, and the engine with a model's dense path and router.

`kvasir_site` enters by `api`, `tasks` and `service_settings`; people by the management commands.
It never imports pages or the relay.
"""
