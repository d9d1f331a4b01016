"""The names of the engines. This module imports nothing: conftest.py needs it where torch is not imported."""

from __future__ import annotations

EAGER = "eager"
COMPILED = "compiled"
WHOLE = "compiled_whole"  # compiled autograd that must have each backward pass as one graph
ENGINES = (EAGER, COMPILED)
