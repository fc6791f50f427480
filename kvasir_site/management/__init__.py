"""Management commands that start and stop processes on this machine."""
