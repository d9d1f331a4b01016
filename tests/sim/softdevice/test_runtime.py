"""The soft device through torch's own generic interfaces. The two modules of checks contain the tests."""

from __future__ import annotations

import pytest

from tests.sim.softdevice import facility_checks, inside, runtime_checks

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize(
    "function",
    [*inside.checks(runtime_checks), *inside.checks(facility_checks)],
    ids=lambda function: function.__name__,
)
def test_runtime(function: inside.Check, once: inside.Once) -> None:
    inside.verdict(function, once)


@pytest.mark.ways(
    ("environ", "said"),
    [
        ({"SOFT_DEVICE_COUNT": "many"}, "SOFT_DEVICE_COUNT"),
        ({"SOFT_DEVICE_MEMORY": "0"}, "SOFT_DEVICE_MEMORY"),
        ({"SOFT_VISIBLE_DEVICES": "7"}, "SOFT_VISIBLE_DEVICES"),
        ({"SOFT_INJECT": "no_such_fault"}, "no_such_fault"),
    ],
)
def test_an_invalid_variable_is_reported_at_loading(environ: dict[str, str], said: str) -> None:
    done = inside.run_script("print('loaded')", environ)
    assert done.returncode == 1
    assert "LoadError" in done.stderr.splitlines()[-1]
    assert said in done.stderr.splitlines()[-1]


def test_loading_twice_is_loading_once_and_another_library_is_refused() -> None:
    done = inside.run_script(
        f"build.load_software_device({str(inside.library())!r})\n"
        f"assert build.loaded_library() == __import__('pathlib').Path({str(inside.library())!r})\n"
        "print(torch.accelerator.current_accelerator())\n"
        "build.load_software_device('/nowhere.so')\n"
    )
    assert done.stdout == "soft\n"
    assert done.stderr.splitlines()[-1].startswith(
        "harness.sim.softdevice.build.SoftdeviceLoadError: cannot load the software device from '/nowhere.so'"
    )


def test_no_device_is_seen_where_none_is_visible() -> None:
    done = inside.run_script(
        "print(torch.soft.device_count(), torch.accelerator.is_available())", {"SOFT_VISIBLE_DEVICES": ""}
    )
    assert (done.stdout, done.stderr) == ("0 False\n", "")


@pytest.mark.ways(
    ("without", "made", "said"),
    [
        ("float64", "float64", "TypeError: soft: this device has no float64"),
        ("float64,complex128", "complex128", "TypeError: soft: this device has no complex128"),
        ("float64", "float32", ""),
        ("double", "float32", "RuntimeError: SOFT_WITHOUT_TYPES: 'double' is no type of torch"),
    ],
)
def test_types_that_are_left_out_are_refused(without: str, made: str, said: str) -> None:
    program = f"print(torch.ones(2, dtype=torch.{made}).to('soft').cpu().tolist())"
    done = inside.run_script(program, {"SOFT_WITHOUT_TYPES": without})
    if said:
        assert said in done.stderr
        assert done.returncode == 1
    else:
        assert (done.stdout, done.stderr) == ("[1.0, 1.0]\n", "")


@pytest.mark.ways(("value", "done"), [("0", "False"), ("1", "True")])
def test_a_synchronous_device_has_nothing_pending(value: str, done: str) -> None:
    program = """
stream, event = torch.Stream('soft'), torch.Event('soft')
torch.soft.sleep(200, stream)
event.record(stream)
print(event.query())
"""
    ended = inside.run_script(program, {"SOFT_SYNCHRONOUS": value})
    assert (ended.stdout, ended.stderr) == (f"{done}\n", "")
