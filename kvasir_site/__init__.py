"""Wiring only: settings, urls, ASGI, Celery. Nobody imports this package."""
