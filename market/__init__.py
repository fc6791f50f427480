"""Control plane: nodes and their tokens, coverage, scarcity, leases, rewards and the ledger.

`kvasir_site.urls` enters by `api`; relay, backbone and pages ask its rooms.
It never imports the relay, the backbone or torch.
"""
