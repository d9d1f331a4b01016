"""What is missing or misspelt is said in one sentence, before anything of a run is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.controller import preparation

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("suites/strems", "file or directory not found: suites/strems; did you mean suites/streams?"),
        (
            "suites/streams/test_b.py::test_x[a::b]",
            "streams/test_b.py::test_x[a::b]; did you mean suites/streams/test_a.py?",
        ),
        ("nowhere/at/all.py", "file or directory not found: nowhere/at/all.py"),
    ],
)
def test_a_path_that_does_not_exist(pytester: pytest.Pytester, argument: str, words: str) -> None:
    (pytester.path / "suites" / "streams").mkdir(parents=True)
    (pytester.path / "suites" / "streams" / "test_a.py").touch()
    config = pytester.parseconfig("-p", "no:harness", "-p", "no:cacheprovider")
    config.args = ["suites/streams/test_a.py::test_it", argument]
    with pytest.raises(pytest.UsageError) as caught:
        preparation.expect_arguments(config)
    assert str(caught.value).endswith(words)
    config.args = ["suites", "suites/streams/test_a.py::test_it[suites/nowhere::x]"]
    preparation.expect_arguments(config)


def test_a_module_that_is_not_installed() -> None:
    preparation.expect_modules(["json", "os.path"])
    with pytest.raises(pytest.UsageError) as caught:
        preparation.expect_modules(["json", "no_such_package.part"])
    assert str(caught.value) == (
        f"harness_preload needs no_such_package.part, and no_such_package is not installed for {sys.executable}: "
        "activate the environment that has it, or: pip install no_such_package"
    )


@pytest.mark.acceptance
@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_python_without_assert_statements(workers: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "suites/streams", "-p", "no:cacheprovider", workers],
        cwd=ROOT,
        env={**os.environ, "PYTHONOPTIMIZE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.startswith("ERROR: harness: Python leaves out the assert statements of modules")
    assert "unset PYTHONOPTIMIZE" in done.stderr


@pytest.mark.acceptance
@pytest.mark.parametrize("arguments", [[], ["-n", "2", "--profile", "smoke"]])
def test_suites_without_the_harness(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "suites/streams", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(
        f"ERROR: gpu-conformance-harness is not installed for {sys.executable}: activate the "
    )
