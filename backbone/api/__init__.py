"""The OpenAI-compatible REST API: routes, errors, limits; one folder for each family of endpoints.

`kvasir_site.urls` enters by `routes`.
It never imports torch or the engine: requests travel through `backbone.stream`.
"""
