"""The choice of the next token from logits.

Serving enters by `choice`.
It holds no state between calls.
"""
