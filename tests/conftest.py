"""Which tests are acceptance tests, the order in which tests are given out, and the end of what they share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.warm import client

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
    "tests/checks/test_state_table.py",
    "tests/ci/test_slurm.py",
    "tests/ci/test_workflow.py",
    "tests/cluster/test_local_runs.py",
    "tests/cluster/test_several_devices.py",
    "tests/cluster/test_slurm.py",
    "tests/cluster/test_ssh.py",
    "tests/devices/test_health.py",
    "tests/devices/test_present.py",
    "tests/gating/test_shipped_configs.py",
    "tests/interposer/test_interposer.py",
    "tests/kit/test_kit.py",
    "tests/matrix/test_browser.py",
    "tests/mutation/test_breaks.py",
    "tests/reporting/page/test_browser.py",
    "tests/simcuda/test_cupti.py",
    "tests/simcuda/test_loading.py",
    "tests/simcuda/test_operators.py",
    "tests/simcuda/test_profiler.py",
    "tests/simcuda/test_runtime.py",
    "tests/softdevice/test_build.py",
    "tests/softdevice/test_core.py",
    "tests/softdevice/test_operators.py",
    "tests/softdevice/test_runtime.py",
    "tests/suites/test_collected_once.py",
    "tests/suites/test_golden.py",
    "tests/test_cli.py",
    "tests/test_cli_waivers.py",
    "tests/test_fixtures.py",
    "tests/test_plugin.py",
    "tests/warm/",
)
#: Files with a test, or a set-up, of half a minute and more.
LONGEST = ("tests/softdevice/test_core.py", "tests/softdevice/test_build.py", "tests/acceptance/test_bisect.py")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "acceptance: it starts whole runs, compilers, or interpreters that import torch, and takes seconds"
    )


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker is left with one when the others have nothing to do any more."""
    for item in items:
        if item.nodeid.startswith(ACCEPTANCE):
            item.add_marker(pytest.mark.acceptance)
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_sessionfinish() -> None:
    client.SERVERS.close()
