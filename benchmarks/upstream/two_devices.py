"""A pytest plugin that gives each case of a foreign suite two devices, as `-p benchmarks.upstream.two_devices`.

A test that was not written for the harness does not declare that it needs two devices: it asks torch at import for
their number. The files are marked, so no process has to process single tests.
"""

from __future__ import annotations

import pytest


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Mark each test file."""
    if isinstance(collector, pytest.Module):
        collector.add_marker(pytest.mark.requires(devices=2))
