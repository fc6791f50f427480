"""The engine: pure torch. It imports neither Django nor Celery nor Redis; the world comes in by injection."""
