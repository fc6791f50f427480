"""Expert kernels: KX1 in C and numpy, the float kernel, and the registry that chooses between them."""
