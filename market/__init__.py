"""Control plane: nodes and tokens, coverage, scarcity, leases, the ledger of rewards.

`kvasir_site` mounts `api`; the relay, the backbone's process and the pages enter by the rooms below.
It never imports torch, the relay, the backbone or the pages.
"""
