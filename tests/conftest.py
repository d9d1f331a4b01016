"""Which tests are acceptance tests, which run each night only, the order of all, and the end of what they share."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.warm import client

# For an argument that does not exist pytest loads this file, though no test of this folder was asked for. What only
# the tests need may then be missing.
try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:
    pass
else:
    # How long an example takes is a matter of what else the machine does.
    settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tests")

#: Folders and files whose tests start whole runs, compilers, or interpreters that import torch.
ACCEPTANCE = (
    "tests/acceptance/",
    "tests/chaos/",
    "tests/checks/test_meters.py",
    "tests/checks/test_origins.py",
    "tests/checks/test_population.py",
    "tests/checks/test_rounds.py",
    "tests/checks/test_state.py",
    "tests/checks/test_state_fixtures.py",
    "tests/checks/test_state_table.py",
    "tests/ci/test_slurm.py",
    "tests/ci/test_workflow.py",
    "tests/tools/cluster/test_local_runs.py",
    "tests/tools/cluster/test_several_devices.py",
    "tests/tools/cluster/test_slurm.py",
    "tests/tools/cluster/test_ssh.py",
    "tests/devices/test_capabilities.py",
    "tests/devices/test_guard.py",
    "tests/devices/test_health.py",
    "tests/devices/test_present.py",
    "tests/devices/test_probe.py",
    "tests/gating/test_shipped_configs.py",
    "tests/sim/interposer/test_interposer.py",
    "tests/sim/native/test_build.py",
    "tests/tools/kit/test_kit.py",
    "tests/tools/matrix/test_browser.py",
    "tests/tools/matrix/test_cli_matrix.py",
    "tests/tools/mutation/test_breaks.py",
    "tests/reporting/page/test_browser.py",
    "tests/sim/simcuda/test_compiler.py",
    "tests/sim/simcuda/test_cupti.py",
    "tests/sim/simcuda/test_loading.py",
    "tests/sim/simcuda/test_operators.py",
    "tests/sim/simcuda/test_profiler.py",
    "tests/sim/simcuda/test_runtime.py",
    "tests/sim/softdevice/test_build.py",
    "tests/sim/softdevice/test_core.py",
    "tests/sim/softdevice/test_operators.py",
    "tests/sim/softdevice/test_runtime.py",
    "tests/suites/test_collected_once.py",
    "tests/suites/test_golden.py",
    "tests/suites/test_optimizers_and_numerics_helpers.py",
    "tests/cli/test_cli.py",
    "tests/cli/test_cli_evidence.py",
    "tests/cli/test_cli_renamed.py",
    "tests/cli/test_cli_reports.py",
    "tests/cli/test_cli_waivers.py",
    "tests/test_fixtures.py",
    "tests/test_plugin.py",
    "tests/warm/",
)
#: Set in the environment, ``pytest tests/`` also runs what is marked ``nightly``.
NIGHTLY = "TESTS_NIGHTLY"
#: Files with a test, or a set-up, of half a minute and more.
LONGEST = (
    "tests/sim/softdevice/test_core.py",
    "tests/sim/softdevice/test_build.py",
    "tests/acceptance/test_bisect.py",
    "tests/checks/test_state_table.py",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "acceptance: it starts whole runs, compilers, or interpreters that import torch, and takes seconds",
        f"nightly: it takes long; `pytest tests/` leaves it out unless {NIGHTLY} is set",
        "ways(names, values, ids): parametrize, and mark all values but one as nightly; the test's name says which",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The mark ``ways``: of the ways to run a test, one is tried on each change, and all of them each night."""
    for mark in metafunc.definition.iter_markers("ways"):
        names, values = mark.args
        kept = chosen_way(f"{metafunc.definition.nodeid} {names}", len(values))
        several = not isinstance(names, str)
        metafunc.parametrize(
            names,
            [
                pytest.param(*(value if several else [value]), marks=[] if place == kept else pytest.mark.nightly)
                for place, value in enumerate(values)
            ],
            **mark.kwargs,
        )


def chosen_way(test: str, count: int) -> int:
    """Which of `count` ways to run a test each change tries: always the same of one test, another one of another."""
    return zlib.crc32(test.encode()) % count


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """More workers than cores: a fifth of the time of these tests is spent waiting."""
    cores = len(os.sched_getaffinity(0))
    return None if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") else cores + (cores + 1) // 2


def pytest_report_header(config: pytest.Config) -> str | None:
    if leaves_out(config.args, config.option.markexpr):
        return f"tests marked nightly are left out; {NIGHTLY}=1 runs them, and so does the name of their file or folder"
    return None


def leaves_out(arguments: Iterable[str], marks: str) -> bool:
    """Whether tests that are marked ``nightly`` are left out: all tests are asked for, and not these.

    `arguments`: files, folders and ids of the command line. `marks`: its expression of marks, "" if it has none.
    """
    tests = Path(__file__).parent
    whole = all(Path(argument.partition("::")[0]).resolve() in (tests, tests.parent) for argument in arguments)
    return whole and not marks and not os.environ.get(NIGHTLY)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest first, so that no worker is left with one when the others have nothing to do any more."""
    for item in items:
        if item.nodeid.startswith(ACCEPTANCE):
            item.add_marker(pytest.mark.acceptance)
    if leaves_out(config.args, config.option.markexpr):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_sessionfinish() -> None:
    client.SERVERS.close()
