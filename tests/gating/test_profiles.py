"""Profiles: valid files, and invalid files reported with line and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.gating.configfile import ConfigError, Loaded
from harness.gating.profiles import (
    Hardware,
    Profile,
    broken_hardware,
    hardware_mismatches,
    load_hardware,
    load_profile,
    suite_groups,
)
from tests.gating.examples import offering


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one hardware file, one waiver file and one must-pass list, the working folder."""
    for name in ("profiles/", "hardware/h200.yaml", "waivers/known.yaml", "must-pass/core.txt"):
        path = tmp_path / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(folder: Path, text: str) -> Loaded[Profile]:
    (folder / "configs" / "profiles" / "mine.yaml").write_text(f"description: a profile\n{text}", encoding="utf-8")
    return load_profile("mine", folder / "configs", folder)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value).splitlines()


def test_a_missing_key_keeps_its_default(folder: Path) -> None:
    said = {
        "description": "a profile",
        "group": False,
        "exclude": (),
        "requires": {},
        "gates": "all",
        "skips": "allowed",
        "waivers": (),
        "must_pass": (),
        "minimum_cases": 1,
        "report": (),
    }
    assert read(folder, "").value.model_dump(exclude_none=True) == said


def test_a_profile_with_every_key(folder: Path) -> None:
    text = """\
group: true
device: soft
suites: [streams, profiler]
cases: ["suites/graphs/test_a.py::*", "*[cuda-*]"]
exclude: ["*::test_slow"]
extended: true
isolation: case
case_timeout: 30
endurance: 60
timeout_multiplier: 1.5
repeats: 3
retries: 0
shuffle: true
slots: 4
fail_on_flaky: false
leak_search: 90
collect_on_failure: all
requires: {device: cuda, driver: ">=570.10"}
gates: [memory, devices]
skips: forbidden
waivers: [known, ./configs/waivers/known.yaml]
must_pass: [core, configs/must-pass/core.txt]
minimum_cases: 7
report: ["json", "markdown:summary.md"]
hardware: h200
"""
    said: dict[str, Any] = {
        "description": "a profile",
        "group": True,
        "device": "soft",
        "suites": ("streams", "profiler"),
        "cases": ("suites/graphs/test_a.py::*", "*[cuda-*]"),
        "exclude": ("*::test_slow",),
        "extended": True,
        "isolation": "case",
        "case_timeout": 30.0,
        "endurance": 60.0,
        "timeout_multiplier": 1.5,
        "repeats": 3,
        "retries": 0,
        "shuffle": True,
        "slots": 4,
        "fail_on_flaky": False,
        "leak_search": 90.0,
        "collect_on_failure": "all",
        "requires": {"device": "cuda", "driver": ">=570.10"},
        "gates": ("memory", "devices"),
        "skips": "forbidden",
        "waivers": ("known", "./configs/waivers/known.yaml"),
        "must_pass": ("core", "configs/must-pass/core.txt"),
        "minimum_cases": 7,
        "report": ("json", "markdown:summary.md"),
        "hardware": "h200",
    }
    assert read(folder, text).value.model_dump() == said
    assert set(said) == set(Profile.model_fields), "a key is missing from this test"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("suite: [a]", "2: suite: there is no such key; did you mean 'suites'?"),
        ("suites: streams", "2: suites: wanted a list, found 'streams'"),
        ("suites: []", "2: suites: wanted a list of 1 or more items, found an empty list"),
        ("suites:\n- a\n- ''", "4: suites[1]: wanted text of 1 or more characters, found ''"),
        ("cases: []", "2: cases: wanted a list of 1 or more items, found an empty list"),
        ("cases: [' a']", "2: cases[0]: ' a' matches no case: an id starts with a folder"),
        ("exclude: [/srv/a.py]", "2: exclude[0]: '/srv/a.py' matches no case: an id starts with a folder"),
        ("isolation: none", "2: isolation: wanted 'batch' or 'case', found 'none'"),
        ("case_timeout: 0", "2: case_timeout: wanted greater than 0, found 0"),
        ("case_timeout: 5m", "2: case_timeout: wanted a number, found '5m'"),
        ("timeout_multiplier: -1", "2: timeout_multiplier: wanted greater than 0, found -1"),
        ("repeats: 0", "2: repeats: wanted greater than or equal to 1, found 0"),
        ("repeats: 1000000", "2: repeats: wanted less than or equal to 1000, found 1000000"),
        ("repeats: 2.0", "2: repeats: wanted a whole number"),
        ("retries: -1", "2: retries: wanted greater than or equal to 0, found -1"),
        ("shuffle: 1", "2: shuffle: wanted true or false"),
        ("shuffle: yes", "2: shuffle: 'yes' is ambiguous (text or boolean)"),
        ("skips: allow", "2: skips: wanted 'allowed' or 'forbidden', found 'allow'"),
        ("minimum_cases: 0", "2: minimum_cases: wanted greater than or equal to 1, found 0"),
        ("gates: memory", "2: gates: wanted 'all' or a list, found 'memory'"),
        ("gates: [devices,\n  memroy]", "3: gates[1]: 'memroy' is not a capability; did you mean 'memory'?"),
        ("gates: [any]", "2: gates[0]: 'any' is not a capability; expected one of: device, "),
        ("requires:\n  memroy: '>=1GiB'", "3: requires.memroy: requires(memroy='>=1GiB'): there is no capability"),
        ("requires:\n  driver: 570.10", "3: requires.driver: wanted text in quotes (a number loses its trailing zero)"),
        ("requires: {device: cpu}", "2: requires: device: cpu holds on every machine; for machines without a GPU "),
        ("hardware: h20", "2: hardware: there is no hardware 'h20' in configs/hardware; did you mean 'h200'?"),
        ("hardware: a/b.yaml", "2: hardware: hardware 'a/b.yaml': there is no file a/b.yaml"),
        (
            "waivers: [known,\n gone]",
            "3: waivers[1]: there is no waiver file 'gone' in configs/waivers; expected one of: known",
        ),
        ("must_pass: [cor]", "2: must_pass[0]: there is no must-pass list 'cor' in configs/must-pass; did you mean "),
        ("waivers: known", "2: waivers: wanted a list, found 'known'"),
    ],
)
def test_an_invalid_profile_is_reported_with_line_and_key(folder: Path, text: str, expected: str) -> None:
    (problem,) = problems(folder, text)
    assert problem.startswith(f"configs/profiles/mine.yaml:{expected}")


def test_every_missing_file_is_reported(folder: Path) -> None:
    assert [problem.split(":")[1] for problem in problems(folder, "waivers: [a]\nmust_pass: [a, b]\nhardware: a")] == [
        "2",
        "3",
        "3",
        "4",
    ]


def test_a_profile_is_found_by_its_path_too(folder: Path) -> None:
    (folder / "mine.yaml").write_text("description: mine")
    assert load_profile("./mine.yaml", folder / "configs", folder).value == Profile(description="mine")


def test_the_error_for_an_unknown_profile_suggests_an_existing_one(folder: Path) -> None:
    read(folder, "")
    with pytest.raises(ConfigError, match=r"^there is no profile 'mien' in configs/profiles; did you mean 'mine'\?$"):
        load_profile("mien", folder / "configs", folder)


def test_a_profile_does_not_change(folder: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read(folder, "").value.repeats = 2  # type: ignore[misc]


def test_the_groups_of_suites_are_the_profiles_that_say_so(folder: Path) -> None:
    for name, text in {
        "device": "group: true\nsuites: [streams, graphs]",
        "framework": "group: true\nsuites: [amp]",
        "soft": "suites: [streams]",
        "all": "extended: true",
    }.items():
        (folder / "configs" / "profiles" / f"{name}.yaml").write_text(f"description: a profile\n{text}\n")
    found = {"streams": "device", "graphs": "device", "amp": "framework"}
    assert suite_groups(folder / "configs") == found
    assert suite_groups(folder / "nowhere") == {}


def test_a_suite_in_two_groups_is_an_error(folder: Path) -> None:
    for name in ("device", "mine"):
        text = "description: a profile\ngroup: true\nsuites:\n  - graphs\n  - streams\n"
        (folder / "configs" / "profiles" / f"{name}.yaml").write_text(text.replace("graphs", f"{name}-only"))
    with pytest.raises(ConfigError) as caught:
        suite_groups(folder / "configs")
    assert str(caught.value).endswith(
        "profiles/mine.yaml:5: suites[1]: 'streams' is in the group 'device' too; remove it from one of the two"
    )


def test_a_group_without_suites_is_an_error(folder: Path) -> None:
    (problem,) = problems(folder, "group: true\n")
    assert problem.endswith("mine.yaml:2: group: a group needs the key 'suites', with the suites that it consists of")


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hardware").mkdir()
    return tmp_path


def hardware(device: dict[str, Any], offers: dict[str, Any] | None = None) -> Hardware:
    return Hardware(description="a kind", device=device, offers=offers or {})


GPU: dict[str, Any] = {"device": "cuda", "compute_capability": "==9.0", "memory": ">=10GiB,<20GiB"}


@pytest.mark.parametrize(
    ("device", "found", "texts"),
    [
        pytest.param(GPU, {"device": "cuda", "compute_capability": (9, 0), "memory": 2**34}, [], id="the same"),
        pytest.param(
            GPU,
            {"device": "cuda", "compute_capability": (8, 0), "memory": 2**36},
            [
                "compute_capability: wanted ==9.0, found 8.0",
                "memory: wanted >=10GiB,<20GiB, found 64.0GiB",
            ],
            id="every difference is reported",
        ),
        pytest.param(
            GPU,
            {"device": "cpu", "compute_capability": None, "memory": 2**34},
            ["device: wanted cuda, found cpu", "compute_capability: wanted ==9.0, found absent (not there)"],
            id="the cpu is no gpu",
        ),
        pytest.param({"device": "cpu"}, {"device": "cpu"}, [], id="the cpu"),
        pytest.param({"device": "cpu"}, {"device": "cuda"}, ["device: wanted cpu, found cuda"], id="a gpu is no cpu"),
        pytest.param(
            {"device": "cpu", "memory": ">=2GiB"},
            {"device": "cuda", "memory": 2**30},
            ["device: wanted cpu, found cuda", "memory: wanted >=2GiB, found 1.0GiB"],
            id="a gpu is no cpu, and other conditions fail too",
        ),
    ],
)
def test_a_device_of_another_kind_does_not_match(
    device: dict[str, Any], found: dict[str, Any], texts: list[str]
) -> None:
    assert [unmet.text for unmet in hardware_mismatches(hardware(device), offering(**found))] == texts


def test_every_broken_promise_is_reported() -> None:
    kind = hardware({"device": "cuda"}, {"triton": True, "ecc": True, "cuda": ">=12.6"})
    assert broken_hardware(kind, offering(triton=(3, 6, 0), ecc=True, cuda=(13, 0))) == []
    assert [unmet.text for unmet in broken_hardware(kind, offering(triton=None, ecc=True, cuda=(12, 4)))] == [
        "cuda: wanted >=12.6, found 12.4",
        "triton: wanted True, found absent (not there)",
    ]


def test_mismatches_ignore_the_promises_and_broken_ignores_the_device() -> None:
    kind = hardware({"device": "cuda"}, {"triton": True})
    assert hardware_mismatches(kind, offering(device="cuda")) == []
    assert broken_hardware(kind, offering(triton=(3, 6))) == []


def test_a_file_is_found_and_read(configs: Path) -> None:
    (configs / "hardware" / "mine.yaml").write_text(
        "description: a kind\ndevice: {device: cpu}\noffers: {numpy: true}\n"
    )
    expected = hardware({"device": "cpu"}, {"numpy": True})
    assert load_hardware("mine", configs, configs).value == expected
    assert load_hardware("hardware/mine.yaml", configs, configs).value == expected
    with pytest.raises(ConfigError, match=r"^there is no hardware 'mien' in hardware; did you mean 'mine'\?$"):
        load_hardware("mien", configs, configs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("offers: {numpy: true}", "1: the key 'device' is missing"),
        ("device: {memory: '>=1GiB'}", "2: device: the key 'device' is missing: write device: cuda or device: cpu"),
        (
            "device: {device: gpu}",
            "2: device.device: requires(device='gpu'): device takes 'cuda' or 'simcuda' or 'rocm' or",
        ),
        ("device: {device: cuda, any: [{ecc: true}]}", "2: device: 'any' is not allowed here"),
        ("device: {device: cuda}\noffers: {not: {mig: true}}", "3: offers: 'not' is not allowed here"),
        (
            "device: {device: cuda}\noffers: {memory: '>=2GiB,<2GiB'}",
            "3: offers: memory >=2GiB,<2GiB cannot hold on any machine",
        ),
        (
            "device: {device: cuda, ecc: true}\noffers: {ecc: true}",
            "1: 'ecc' is in both 'device' and 'offers': keep one",
        ),
        ("device:\n  device: cuda\n  driver: 570.10", "4: device.driver: wanted text in quotes"),
        (
            "device: {device: cuda}\nfloors:\n  d2d_bandwith: '>=2.4TB/s'",
            "4: floors.d2d_bandwith: there is no figure 'd2d_bandwith'; did you mean 'd2d_bandwidth'?",
        ),
        (
            "device: {device: cuda}\nfloors:\n  event_record: '<=9us'\n  d2d_bandwidth: '>=2.4TFLOP/s'",
            "5: floors.d2d_bandwidth: '>=2.4TFLOP/s': the unit 'TFLOP/s' is none of TB/s, GB/s",
        ),
        (
            "device: {device: cuda}\nfloors: {launch_latency: '>=20us'}",
            "3: floors.launch_latency: '>=20us': expected <=, since a time is at most its floor",
        ),
        ("device: {device: cuda}\nfloors: {d2d_bandwidth: 2.4}", "3: floors.d2d_bandwidth: 2.4: expected >=, a number"),
        (
            "device: {device: cuda}\nwithout_types: [int8, double]",
            "3: without_types[1]: 'double' is no type of torch: ",
        ),
        ("device: {device: cuda}\nwithout_types: float64", "3: without_types: wanted a list, found 'float64'"),
        ("device: {device: cuda}\nfloors: {d2d_bandwidth: [1]}", "3: floors.d2d_bandwidth: [1]: expected >=, a number"),
        ("device: {device: cuda}\noffer: {ecc: true}", "3: offer: there is no such key; did you mean 'offers'?"),
    ],
)
def test_an_invalid_hardware_file_is_reported_with_line_and_key(configs: Path, text: str, expected: str) -> None:
    (configs / "hardware" / "mine.yaml").write_text(f"description: a kind\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_hardware("mine", configs, configs)
    (problem,) = str(caught.value).splitlines()
    assert problem.startswith(f"hardware/mine.yaml:{expected}")
