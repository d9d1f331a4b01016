"""The specification of a zygote, and the environment of its executors."""

from __future__ import annotations

import pytest

from harness.zygote.spec import ZygoteSpec, collection_overrides, executor_environment, openmp_wait_policy


def test_a_spec_survives_its_one_line() -> None:
    spec = ZygoteSpec(
        args=("suites", "-k", "a\nb"),
        collection_args=("suites", "-k", "a\nb", "--rootdir=/x", "--capture=no"),
        rootdir="/x",
        inifile=None,
        sys_path=("", "/x"),
        preload=(),
        parent=12,
        skip_early_exit_handlers=True,
        many_forks=False,
        start="cold",
        under="compiled_autograd",
    )
    line = spec.to_json()
    assert "\n" not in line
    assert ZygoteSpec.from_json(line) == spec


def test_overrides_name_only_options_of_plugins_that_are_there() -> None:
    assert "--numprocesses=0" in collection_overrides({"xdist", "logging"}.__contains__)
    bare = collection_overrides(set().__contains__)
    assert not any("numprocesses" in word or "log" in word for word in bare)


def test_an_executor_gets_its_devices_and_what_collection_had_changed_is_put_back() -> None:
    outer = {"OPENBLAS_NUM_THREADS": "8", "PYTEST_XDIST_WORKER": "gw1", "HOME": "/root"}
    made = executor_environment(outer, {"CUDA_VISIBLE_DEVICES": "GPU-1"}, ["PYTEST_XDIST_WORKER", "ABSENT"])
    assert made == {
        "OPENBLAS_NUM_THREADS": "8",
        "PYTORCH_NVML_BASED_CUDA_CHECK": None,
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTEST_XDIST_WORKER": "gw1",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
    }


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_how_threads_wait_is_the_users_to_say(name: str) -> None:
    assert openmp_wait_policy({name: "infinite"}) == {}
    assert "OMP_WAIT_POLICY" not in executor_environment({name: "infinite"}, {}, [])
    assert openmp_wait_policy({"OMP_NUM_THREADS": "1"}) == {"OMP_WAIT_POLICY": "PASSIVE"}
