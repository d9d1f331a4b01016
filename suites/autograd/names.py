"""The names of the engines. This module imports nothing, because conftest.py needs it in processes without torch."""

from __future__ import annotations

EAGER = "eager"
COMPILED = "compiled"
WHOLE = "compiled_whole"  # compiled autograd, with each backward pass required to be one graph
ENGINES = (EAGER, COMPILED)
