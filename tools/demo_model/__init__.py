"""The recipe of the demo model: prepare a corpus, train, convert to GGUF, evaluate.

People enter, by the commands that README.md lists in order.
The product never imports it.
"""
