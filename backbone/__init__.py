"""The backbone: the dense path of a model, its router, and everything around it that the site calls."""
