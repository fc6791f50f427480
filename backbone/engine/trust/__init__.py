"""What is believed of workers: entry tests, audits, standing, and receipts for verified work.

Dispatch enters by `guard`.
It never books pay: receipts leave through the backbone process.
"""
