"""Says which process is which worker, for those who want to end one."""

import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A worker's own process notes its number; zygotes and executors come from another one."""
    reported = getattr(config, "workerinput", None)
    if reported is not None:
        (Path(os.environ["PROBE_DIR"]) / reported["workerid"]).write_text(str(os.getpid()))
