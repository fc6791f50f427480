"""The recipe of the demo model: prepare a corpus, train, convert to GGUF, evaluate. README.md tells it in order."""
