"""The JSON schemas that are shipped beside the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HARNESS = Path(__file__).parent.parent / "harness"


def shipped_schema(name: str) -> Any:
    """Return a schema by its path in the package: ``journal/journal``."""
    return json.loads((HARNESS / f"{name}.schema.json").read_text(encoding="utf-8"))
