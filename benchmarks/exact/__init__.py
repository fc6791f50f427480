"""Parts of `bench_exact`: logits sharded and alone.

Only that benchmark enters.
It never tolerates a different bit.
"""
