"""Management commands of the backbone."""
