"""Drafts of one sequence: guesses, their length, and whether they pay.

Serving enters by `drafter`.
It never changes which token is chosen.
"""
