"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

import pytest
import torch

from suites.reaching import reach


def annotations_enabled() -> bool:
    """Return whether the kernels of a capture can currently be marked for profilers."""
    found: bool = reach("torch.cuda._graph_annotations._annotations_enabled")
    return found


def disable_annotations() -> None:
    """Disable what `enable_annotations` of a capture enables."""
    reach("torch.cuda._graph_annotations.disable_annotations")()


def without_cuda_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch find no package cuda.bindings."""
    reach("torch.cuda.graphs._cuda_runtime")
    monkeypatch.setattr(torch.cuda.graphs, "_cuda_runtime", None)


def without_ids_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch find cuda.bindings, and a driver that assigns no tool ids to the nodes of graphs."""
    module = reach("torch.cuda._graph_annotations")
    reach("torch.cuda._graph_annotations._tools_id_available")
    monkeypatch.setattr(module, "_tools_id_available", False)
    for name in ("_cuda_runtime", "_cuda_driver"):
        monkeypatch.setattr(torch.cuda.graphs, name, object())
