"""Data plane: the bridge between backbones and workers that both dial out to it (docs/reference/relay.md)."""
