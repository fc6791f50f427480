"""Parts of `bench_expert`: speed and error of the expert kernel.

Only that benchmark enters.
It never measures a network.
"""
