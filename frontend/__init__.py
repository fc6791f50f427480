"""Pages: dashboard, contribute, playground. Empty until its first capability lands; docs/architecture.md says what belongs here."""
