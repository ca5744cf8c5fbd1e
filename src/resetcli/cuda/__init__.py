"""Small-M NVFP4 matrix products: the bench and its backends (design 1.5)."""
