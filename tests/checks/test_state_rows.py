"""Each setting that the harness compares has a row that changes it, so that a new one without a row fails here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from harness.checks import state

HERE = Path(__file__).parent
#: Settings without a row, and why. The list may only become shorter.
UNTRIED = {
    "the time stamp counter": "a process that may not read it cannot read a clock",
    "the securebits": "only the superuser can change them",
    "the tracing context of torch.compile": "it is set while torch compiles, and nothing public leaves it set",
    "the log levels and artifacts of torch": "a row would set up the logging of all of torch",
    "the registered backends of torch.compile": "a backend cannot be unregistered",
    "Python's clock": "tests/acceptance/fixture_suites/stopped_clocks replaces it in whole runs",
}


def settings() -> Iterator[str]:
    """Yield the names of the settings that have a constant name."""
    for path in Path(state.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "StateRow":
                name = node.args[0]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value


def tried() -> str:
    """Return all texts of the tests that change settings."""
    paths = [*HERE.glob("*.py"), *(HERE.parent / "acceptance").rglob("*.py"), *(HERE.parent / "sim").rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths if path != Path(__file__))


def test_each_setting_has_a_row_that_changes_it() -> None:
    texts = tried()
    names = [*settings()]
    assert len(names) > 60
    assert {name for name in names if name not in texts} == UNTRIED.keys()
