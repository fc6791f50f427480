"""Control plane: nodes, coverage, scarcity, leases, rewards. Empty until its first capability lands; docs/architecture.md says what belongs here."""
