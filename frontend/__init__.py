"""Pages: dashboard, contribute, playground. Empty until they land; docs/architecture.md says what belongs here."""
