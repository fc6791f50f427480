"""Wiring: settings, URLs, ASGI, Celery, middleware, and the supervisor behind `make run`.

`manage.py` and the server processes enter.
No other package imports it.
"""
