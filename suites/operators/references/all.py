"""All functions of the interpreter: importing this module registers them."""

from __future__ import annotations

from . import convolution, derivatives, elementwise, indexing, products, reductions, shapes, windows

__all__ = ["convolution", "derivatives", "elementwise", "indexing", "products", "reductions", "shapes", "windows"]
