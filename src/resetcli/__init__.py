"""resetcli: NVFP4 reasoning models with ReSET decoding (arXiv 2606.13233)."""

__version__ = "0.1.0"
