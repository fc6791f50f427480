"""Text to token ids and back, and chat templates.

Serving and the backbone process enter.
It never runs a template without a budget.
"""
