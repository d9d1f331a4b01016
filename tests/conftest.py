"""Marks and options of the tests, their order, and the end of shared processes."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests import fake_nvml
from tests.warm import client

# pytest loads this file for an argument that does not exist, even if no test of this folder is requested. Packages that
# only the tests need may then be missing.
try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:
    pass
else:
    # The time of an example depends on what else the machine does.
    settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tests")

#: Folders in which each test starts whole runs or interpreters.
ACCEPTANCE = ("tests/acceptance/", "tests/chaos/", "tests/warm/")


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the fake NVML, compiled once."""
    return fake_nvml.build(tmp_path_factory.mktemp("fake_nvml"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-nightly", action="store_true", help="also run the tests that are marked nightly")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "acceptance: starts whole runs, compilers, or interpreters that import torch, and takes seconds",
        "nightly: runs with --run-nightly only, because it takes long",
        "long: it, or its set-up, takes half a minute and more, so it begins first",
        "ways(names, values, ids): parametrize, and mark most values as nightly; the test's name decides which",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Implement the mark ``ways``: each change tries some of the ways to run a test, and each night all of them."""
    for mark in metafunc.definition.iter_markers("ways"):
        names, values = mark.args
        kept = chosen_ways(f"{metafunc.definition.nodeid} {names}", len(values))
        several = not isinstance(names, str)
        metafunc.parametrize(
            names,
            [
                pytest.param(*(value if several else [value]), marks=[] if place in kept else pytest.mark.nightly)
                for place, value in enumerate(values)
            ],
            **mark.kwargs,
        )


def chosen_ways(test: str, count: int) -> list[int]:
    """Return which of `count` ways to run a test each change tries: one of up to four, and a quarter of more.

    The choice is constant per test, and differs between tests.
    """
    step = min(count, 4)
    return [*range(zlib.crc32(test.encode()) % step, count, step)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return more workers than cores: these tests spend a fifth of their time waiting."""
    cores = len(os.sched_getaffinity(0))
    return None if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") else cores + (cores + 1) // 2


def pytest_report_header(config: pytest.Config) -> str | None:
    nightly = config.getoption("--run-nightly", False)
    return None if nightly else "tests marked nightly are left out: --run-nightly runs them"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection, which would take two seconds and find little.

    Later collections leave out what exists then. Each pytest within a test collects garbage five times when it ends:
    with all tests and torch in this process, that would take 1.7 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long tests first, so that no worker still runs one when the others have finished."""
    for item in items:
        if item.nodeid.startswith(ACCEPTANCE):
            item.add_marker(pytest.mark.acceptance)
    if not config.getoption("--run-nightly", False):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], str]], str]:
    """Return ``once(name, make)``, which returns the text that `make` returned in the first worker to use the name."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    folder.mkdir(exist_ok=True)

    def read(name: str, make: Callable[[], str]) -> str:
        path = folder / name
        with FileLock(folder / f"{name}.lock"):
            if not path.exists():
                text = make()
                path.write_text(text, encoding="utf-8")
            return path.read_text(encoding="utf-8")

    return read


@pytest.fixture(scope="session")
def cases(once: Callable[[str, Callable[[], str]], str]) -> list[dict[str, Any]]:
    """Return all cases of the project, as the catalog lists them. They are collected once: it takes ten seconds."""

    def catalog() -> str:
        command = [sys.executable, "-m", "harness", "catalog", "--format", "json"]
        root = Path(__file__).parents[1]
        # Without pytest's variables, which differ in each session, a list that is kept from before is found.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    found: list[dict[str, Any]] = json.loads(once("catalog.json", catalog))
    return found


def pytest_sessionfinish() -> None:
    client.SERVERS.close()
