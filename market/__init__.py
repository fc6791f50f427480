"""Control plane: nodes and their tokens today; coverage, scarcity, leases and rewards follow."""
