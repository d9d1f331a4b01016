"""Workers import the conftests of the suites but none of the cases, so they stay small."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from harness.collection import foreign_plugins

ROOT = Path(__file__).parents[2]
CONFTESTS = sorted((ROOT / "suites").rglob("conftest.py"))


def test_there_are_conftests() -> None:
    assert CONFTESTS


def test_no_conftest_imports_torch() -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in CONFTESTS]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules and 'torch was imported')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", CONFTESTS, ids=lambda path: path.parent.name)
def test_no_conftest_needs_real_items(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert not [hook for hook in foreign_plugins.ITEM_HOOKS if hasattr(module, hook)]
