"""Drafts of one sequence: guesses, how long they should be, and whether they pay.

Serving enters by `drafter`.
It never changes which token is chosen.
"""
