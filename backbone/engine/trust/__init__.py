"""Trust in workers: entry tests, audits, the rules of standing, and receipts for verified work.

Dispatch enters by `guard`.
It never books pay: receipts leave through the backbone process.
"""
