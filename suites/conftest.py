"""Says what is missing if pytest runs the suites without the harness, and keeps torch from waiting for a program."""

from __future__ import annotations

import os
import shutil
import sys

import pytest


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Raise pytest.UsageError before pytest refuses the harness's options, marks and ini values as unknown."""
    loaded = pluginmanager.has_plugin("harness") or pluginmanager.has_plugin("harness.plugin")
    if not loaded and not pluginmanager.is_blocked("harness"):
        raise pytest.UsageError(
            f"gpu-conformance-harness is not installed for {sys.executable}: activate the environment that has it, or, "
            "in the folder of the project: pip install -c constraints.txt -e ."
        )


def pytest_configure() -> None:
    """Let torch name C++ frames without addr2line where binutils are not installed.

    torch 2.13 waits for ever for the program that it cannot start (torch/csrc/profiler/unwind/unwind.cpp).
    """
    if shutil.which("addr2line") is None:
        os.environ.setdefault("TORCH_DISABLE_ADDR2LINE", "1")
