"""An interpreter that a case starts in a search: it has the break of the case, or records what it reaches.

`hand_down` puts the folder with `sitecustomize` in front of the path that such interpreters get.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

#: Has a line of JSON: the name of a break or an empty text, the device, the folder that contains torch, and the folder
#: for records.
VARIABLE = "HARNESS_SEARCH"
_FOLDER = str(Path(__file__).with_name("inherited"))


def hand_down(name: str, device: str, root: Path, records: Path) -> None:
    """Give a break to the interpreters that this process starts; without a name, have them record what they reach."""
    os.environ[VARIABLE] = json.dumps([name, device, str(root), str(records)])
    sys.path.insert(0, _FOLDER)


def install() -> None:
    """Act once torch is imported. Without the variable, do nothing."""
    if VARIABLE in os.environ and "torch" not in sys.modules:
        sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch as without this, and acts when it is imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        name, device, root, records = json.loads(os.environ[VARIABLE])
        from tests.breaks.search.making import Making

        making = Making(device, Path(root))
        if name:
            making.made(name)()
            return
        from tests.breaks.search.recorder import Recorder

        recorder = Recorder(making, Path(root), Path(records))
        recorder.start()
        atexit.register(recorder.stop)
