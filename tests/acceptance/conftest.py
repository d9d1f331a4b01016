"""Fixtures of the acceptance tests. The suites in fixture_suites run in their own projects, not in this session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import fake_nvml
from tests.acceptance.gpu_machine import Machine
from tests.acceptance.project import Project

collect_ignore = ["fixture_suites"]

MakeProject = Callable[..., Project]


@pytest.fixture
def make_project(tmp_path: Path) -> MakeProject:
    """Return a function that makes a project from copies of fixture suites: ``make_project("deaths", "hangs")``."""

    def make(*topics: str) -> Project:
        return Project(tmp_path / "project", *topics)

    return make


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the fake NVML library."""
    return fake_nvml.build(tmp_path_factory.mktemp("fake_nvml"))


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    """Return a machine with two GPUs."""
    return Machine(tmp_path, library)
