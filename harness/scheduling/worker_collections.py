"""Compare the collections of xdist's workers: all must be equal, because cases are positions in the list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest
from xdist.report import report_collection_diff

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


def same_everywhere(config: pytest.Config, collections: Mapping[WorkerController, Sequence[str]]) -> bool:
    """Return whether all workers have collected the same cases. A difference becomes a collection error."""
    (first, wanted), *others = collections.items()
    differences = [
        (node, report_collection_diff(wanted, found, first.gateway.id, node.gateway.id)) for node, found in others
    ]
    for node, text in differences:
        if text:
            report = pytest.CollectReport(nodeid=node.gateway.id, outcome="failed", longrepr=text, result=[])
            config.hook.pytest_collectreport(report=report)
    return not any(text for _, text in differences)
