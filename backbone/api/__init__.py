"""The OpenAI-compatible REST API: routes, errors, and what all endpoints share; a folder for each family of endpoints.

`kvasir_site.urls` enters by `routes`, `docs`, `errors` and `service.health`.
It never imports torch or the engine: requests travel through `backbone.stream`.
"""
