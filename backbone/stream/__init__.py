"""The messages between web processes and backbone processes through Redis: requests, events, records.

The API and the backbone process enter.
It never imports torch, the engine or Django's views.
"""
