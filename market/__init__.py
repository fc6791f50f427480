"""Control plane: nodes and tokens, coverage, scarcity, leases, the ledger of rewards.

`kvasir_site` mounts `api`; the relay, the backbone and the pages enter by `service` and by the rooms in its folders.
It never imports torch, the relay, the backbone or the pages.
"""
