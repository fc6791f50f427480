"""The workers, as the engine can ask them: edges, placement, replica choice, measured speed, the own replica.

`dispatch`, `trust` and `serving` enter.
It never decides which worker is honest.
"""
