"""Data plane: the bridge between backbone and workers. Empty until its first capability lands; docs/architecture.md says what belongs here."""
