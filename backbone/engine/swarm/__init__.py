"""Who can be asked: edges, placement, choice of replicas, measured speed, the own replica.

Dispatch, trust and serving enter.
It never decides who is honest.
"""
