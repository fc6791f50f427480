"""Benchmarks: one script a question, one JSON line an answer; METHODOLOGY.md says what is timed."""
