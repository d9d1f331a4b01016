"""Fixtures for the tests of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import fake_nvml


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the fake NVML, compiled once."""
    return fake_nvml.build(tmp_path_factory.mktemp("fake_nvml"))
