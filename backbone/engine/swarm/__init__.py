"""Who can be asked: edges to workers, placement, choice of replicas, measured speed, the backbone's own replica.

`dispatch`, `trust` and `serving` enter.
It never decides which worker is honest.
"""
