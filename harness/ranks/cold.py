"""A rank as a fresh interpreter: ``python -m harness.ranks.cold ORDER``.

This is for a process that must not be forked, because it uses a device. `harness.ranks.ranks` writes the order.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from harness.ranks.rank import Rank, run_rank


def write_order(path: Path, rank: Rank, module: str, name: str, arguments: bytes, loading: str) -> None:
    """Write the instructions for the interpreter. `loading`: code that makes a third-party device usable."""
    order = {"rank": rank, "module": module, "name": name, "arguments": arguments, "loading": loading}
    path.write_bytes(pickle.dumps({**order, "parent": os.getpid(), "torch": "torch" in sys.modules}))


def main(path: str) -> NoReturn:
    """Execute the order at `path`."""
    order: Mapping[str, Any] = pickle.loads(Path(path).read_bytes())
    if order["torch"]:  # before the rank begins, because the rank seeds imported libraries
        importlib.import_module("torch")
    exec(order["loading"], {})
    body = getattr(importlib.import_module(order["module"]), order["name"])
    run_rank(order["rank"], body, order["arguments"], order["parent"])


if __name__ == "__main__":
    main(sys.argv[1])
