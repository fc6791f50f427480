"""Data plane: the bridge between backbones and workers that both dial out to it. docs/relay.md has the protocol."""
