"""Hardware files: their content, devices that do not match, and broken promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.gating.configfile import ConfigError
from harness.gating.hardware import Hardware, broken_hardware, hardware_mismatches, load_hardware
from tests.gating.examples import offering


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
