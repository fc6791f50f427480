"""The ledger of rewards: receipts, quotes, double-entry postings, reports.

The backbone's process enters by `receipts`, the market's routes by `rewards_report`.
It never changes a row that was written.
"""
