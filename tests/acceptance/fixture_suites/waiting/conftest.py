"""Records the process of each worker, for tests that kill one."""

import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Record the worker's number in its own process; zygotes and executors have other processes."""
    reported = getattr(config, "workerinput", None)
    if reported is not None:
        (Path(os.environ["PROBE_DIR"]) / reported["workerid"]).write_text(str(os.getpid()))
