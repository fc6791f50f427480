"""The native worker: holds one slice and computes its experts for any number of backbones."""
